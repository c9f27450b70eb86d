//! Ids of models on the Hugging Face hub, given in place of a path.

use std::path::Path;

/// Extensions of files, which a model id does not have.
const FILE_ENDS: [&str; 8] = ["safetensors", "bin", "pt", "pth", "bpk", "json", "toml", "gguf"];

/// Returns the model id `organization/name` that a path may be meant as.
pub(crate) fn of(path: &Path) -> Option<String> {
    in_directory(Path::new(""), path)
}

/// Does the same as `of` for a missing path of a recipe, which is relative to the directory of the recipe.
///
/// The directory is the existing part of the path.
pub fn of_recipe(path: &Path) -> Option<String> {
    let directory = path.parent()?.parent()?;
    let is_there = directory.as_os_str().is_empty() || directory.is_dir();
    if path.is_absolute() || !is_there { None } else { in_directory(directory, path.strip_prefix(directory).ok()?) }
}

fn in_directory(directory: &Path, path: &Path) -> Option<String> {
    let (organization, name) = path.to_str()?.split_once('/')?;
    let is_word = |word: &str| {
        let is_sign = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        word.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && word.chars().all(is_sign)
    };
    let is_file = path.extension().is_some_and(|extension| FILE_ENDS.iter().any(|end| extension == *end));
    // If the directory exists, the path is a typing error in the path of a local model.
    (is_word(organization) && is_word(name) && !is_file && !directory.join(organization).exists())
        .then(|| format!("{organization}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_organization_and_a_name_and_are_not_local_paths() {
        let id = |path: &str| of(path.as_ref());
        assert_eq!(id("no-such-organization/a.model-1.7B").as_deref(), Some("no-such-organization/a.model-1.7B"));
        for path in ["src/none", "none", "/a/b", "./a/b", "a/b/c", "a/b.safetensors", "a/", "../a", "a/b c", ""] {
            assert_eq!(id(path), None, "{path}");
        }
        let of_recipe = |path: &str| of_recipe(path.as_ref());
        assert_eq!(of_recipe("src/org/name").as_deref(), Some("org/name"));
        assert_eq!(of_recipe("org/name").as_deref(), Some("org/name"));
        for path in ["src/io/none", "none/org/name", "/org/name", "src/none", "none", "src/org/a.bin", ""] {
            assert_eq!(of_recipe(path), None, "{path}");
        }
    }
}
