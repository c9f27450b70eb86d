//! Ids of models of the Hugging Face hub, given where a path is expected.

use std::path::Path;

/// How the names of files end that are no models of the hub.
const FILE_ENDS: [&str; 8] = ["safetensors", "bin", "pt", "pth", "bpk", "json", "toml", "gguf"];

/// The id of a model of the Hugging Face hub that a path may be meant for: `organization/name`.
pub(crate) fn of(path: &Path) -> Option<String> {
    let (organization, name) = path.to_str()?.split_once('/')?;
    let is_word = |word: &str| {
        let is_sign = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        word.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && word.chars().all(is_sign)
    };
    let is_file = path.extension().is_some_and(|extension| FILE_ENDS.iter().any(|end| extension == *end));
    // A typing error in the path of a local model has a directory that is there.
    (is_word(organization) && is_word(name) && !is_file && !Path::new(organization).exists())
        .then(|| format!("{organization}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_an_organization_and_a_name_and_a_path_of_this_machine_is_none() {
        let id = |path: &str| of(path.as_ref());
        assert_eq!(id("no-such-organization/a.model-1.7B").as_deref(), Some("no-such-organization/a.model-1.7B"));
        for path in ["src/none", "none", "/a/b", "./a/b", "a/b/c", "a/b.safetensors", "a/", "../a", "a/b c", ""] {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
