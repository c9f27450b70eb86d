//! Missing directories above an output.

use crate::io::paths::parent_of;
use crate::io::presence;
use briquette_core::{Error, Result};
use std::path::{Path, PathBuf};

/// The directories above an output that were created for it. Empty ones are removed on drop.
#[derive(Debug)]
#[must_use = "the directories are removed on drop if they are empty"]
pub struct ParentDirectories {
    /// Innermost first.
    made: Vec<PathBuf>,
}

impl ParentDirectories {
    /// Creates the missing directories above `target`.
    ///
    /// # Errors
    /// Io: a directory cannot be created.
    pub fn create(target: &Path) -> Result<Self> {
        let parent = parent_of(target);
        let made = Self { made: missing_directories(&parent)? };
        match std::fs::create_dir_all(&parent) {
            Ok(()) => Ok(made),
            Err(source) => Err(Error::io("cannot create the directory", &parent, source)),
        }
    }
}

impl Drop for ParentDirectories {
    fn drop(&mut self) {
        // A directory with an output cannot be removed, nor can those above it.
        let _ = self.made.iter().try_for_each(std::fs::remove_dir);
    }
}

/// Returns the path and its ancestors that do not exist yet, innermost first.
fn missing_directories(path: &Path) -> Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        if presence::exists(ancestor)? {
            break;
        }
        missing.push(ancestor.to_path_buf());
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_stay_only_if_they_have_an_output() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a/b/out");
        let parents = ParentDirectories::create(&target).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        drop(parents);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let parents = ParentDirectories::create(&target).unwrap();
        std::fs::write(&target, "x").unwrap();
        drop(parents);
        assert!(target.is_file());
        drop(ParentDirectories::create(&dir.path().join("a/b/other")).unwrap());
        assert!(target.is_file());
    }

    #[test]
    fn a_file_above_the_output_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let error = ParentDirectories::create(&dir.path().join("new/../file/sub/out")).unwrap_err();
        assert_eq!(error.kind, briquette_core::ErrorKind::Io, "{error}");
        assert!(dir.path().join("file").is_file());
    }
}
