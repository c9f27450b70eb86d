//! Paths as shown to people.

use std::borrow::Cow;
use std::path::Path;

/// Returns a path as text, relative to the working directory if it lies below it.
pub fn shown_path(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let below = path.strip_prefix(here).ok().filter(|below| path.is_absolute() && !below.as_os_str().is_empty());
    below.unwrap_or(path).display().to_string()
}

/// Returns a text in which each path below the working directory is relative to it.
///
/// Sweeps and batches resolve the paths of a recipe, but people know them as they wrote them.
pub(crate) fn with_shown_paths(text: &str) -> Cow<'_, str> {
    let here = std::env::current_dir().unwrap_or_default();
    let here = format!("{}/", here.display());
    // Every absolute path is below the root.
    if here.len() <= 2 || !text.contains(&here) {
        return text.into();
    }
    let is_part = |letter: char| letter.is_alphanumeric() || "-_./".contains(letter);
    let mut parts = text.split(&here);
    let mut shown = parts.next().unwrap_or_default().to_string();
    for part in parts {
        if shown.ends_with(is_part) || part.is_empty() {
            shown += &here;
        }
        shown += part;
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_working_directory_are_shown_relative() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(shown_path(&here.join("out/6MB")), "out/6MB");
        assert_eq!(shown_path(&here), here.display().to_string());
        for path in ["/elsewhere/out", "out", "../out", ""] {
            assert_eq!(shown_path(Path::new(path)), path);
        }
    }
    #[test]
    fn paths_in_a_text_are_shown_relative() {
        let here = std::env::current_dir().unwrap().display().to_string();
        for (text, expected) in [
            (format!("{here}/a.pt: no"), "a.pt: no".to_string()),
            (format!("is like {here}/a and \"{here}/b c\""), "is like a and \"b c\"".into()),
            (format!("/mnt{here}/a, {here}, {here}2/a"), format!("/mnt{here}/a, {here}, {here}2/a")),
            (format!("{here}/"), format!("{here}/")),
            ("/elsewhere/a".into(), "/elsewhere/a".into()),
        ] {
            assert_eq!(with_shown_paths(&text), expected);
        }
    }
}
