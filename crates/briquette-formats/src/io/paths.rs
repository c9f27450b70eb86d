//! Checks of paths that only need their text, not the file system.

use std::path::{Component, Path, PathBuf};

/// Returns whether a relative path stays below its directory: no `..`, no root, no backslash. Links are not
/// followed.
pub fn stays_inside(path: &str) -> bool {
    let is_plain = !path.is_empty() && !path.contains(['\0', '\\']);
    is_plain && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the directory of a file; `.` if the path has none.
pub fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_directory_are_refused() {
        for bad in ["", "..", "../a", "/etc/passwd", "a/../../b", "a\0b", "./a", "a\\b"] {
            assert!(!stays_inside(bad), "{bad:?}");
        }
        for good in ["a", "a.safetensors", "sub/a"] {
            assert!(stays_inside(good), "{good:?}");
        }
    }
}
