//! Paths as shown to people.

use std::path::Path;

/// Returns a path as text, relative to the working directory if it lies below it.
pub fn shown_path(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let below = path.strip_prefix(here).ok().filter(|below| path.is_absolute() && !below.as_os_str().is_empty());
    below.unwrap_or(path).display().to_string()
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
}
