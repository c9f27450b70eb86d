//! Checks what is at a path. A failed check is an error, not absence.
//!
//! `Path::exists` and `Path::is_dir` return `false` for a path that cannot be accessed and for a broken link. A
//! run would then continue without a tokenizer, or replace a directory that it considered free.

use briquette_core::{Error, Result};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Returns whether a file or directory is at the path. Links are followed.
///
/// # Errors
/// - Input: the path is a broken link.
/// - Io: the path cannot be accessed.
pub fn exists(path: &Path) -> Result<bool> {
    Ok(metadata(path)?.is_some())
}

/// Returns whether a directory is at the path. Links are followed.
///
/// # Errors
/// See [`exists`].
pub fn is_directory(path: &Path) -> Result<bool> {
    Ok(metadata(path)?.is_some_and(|found| found.is_dir()))
}

/// Returns whether a regular file is at the path. Links are followed.
///
/// # Errors
/// See [`exists`].
pub fn is_file(path: &Path) -> Result<bool> {
    Ok(metadata(path)?.is_some_and(|found| found.is_file()))
}

/// Returns the metadata of the file or directory at the path, if one is there. Links are followed.
///
/// # Errors
/// See [`exists`].
pub fn metadata(path: &Path) -> Result<Option<Metadata>> {
    let found = unless_absent(path, std::fs::metadata(path))?;
    if found.is_none() && has_entry(path)? {
        let target = std::fs::read_link(path).unwrap_or_default();
        let message = format!("is a link to {}, which does not exist; restore it or remove the link", target.display());
        return Err(Error::input(message).at(path.display()));
    }
    Ok(found)
}

/// Returns whether the directory has an entry at the path. A link counts, even a broken one.
///
/// # Errors
/// Io: the path cannot be accessed.
pub fn has_entry(path: &Path) -> Result<bool> {
    Ok(entry_metadata(path)?.is_some())
}

/// Returns the metadata of the entry at the path, if there is one. Links are not followed.
///
/// # Errors
/// Io: the path cannot be accessed.
pub fn entry_metadata(path: &Path) -> Result<Option<Metadata>> {
    unless_absent(path, std::fs::symlink_metadata(path))
}

/// Returns the path without links, if it exists.
///
/// # Errors
/// Io: the path cannot be resolved.
pub fn resolved(path: &Path) -> Result<Option<PathBuf>> {
    unless_absent(path, std::fs::canonicalize(path))
}

/// Returns the nearest ancestor of the path that exists, as given and without links. A path is its own first
/// ancestor.
///
/// # Errors
/// Io: an ancestor cannot be resolved.
pub fn resolved_ancestor(path: &Path) -> Result<Option<(&Path, PathBuf)>> {
    for ancestor in path.ancestors() {
        if let Some(found) = resolved(ancestor)? {
            return Ok(Some((ancestor, found)));
        }
    }
    Ok(None)
}

/// Returns the paths in a directory, in order.
///
/// # Errors
/// Io: the directory cannot be listed.
pub fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::io("cannot list", directory, source);
    let found = std::fs::read_dir(directory).map_err(failed)?.map(|entry| Ok(entry.map_err(failed)?.path()));
    let mut paths = found.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Turns the two errors that mean absence into `None`: no such entry, and a parent that is a file.
fn unless_absent<T>(path: &Path, found: std::io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(source) if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(Error::io("cannot access", path, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::ErrorKind;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_missing_entry_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        symlink("file", at("link")).unwrap();
        for (name, is_there) in [("file", true), ("link", true), ("gone", false), ("file/below", false)] {
            assert_eq!(exists(&at(name)).unwrap(), is_there, "{name}");
            assert_eq!(has_entry(&at(name)).unwrap(), is_there, "{name}");
        }
        assert!(is_directory(dir.path()).unwrap() && !is_directory(&at("link")).unwrap());
        assert!(is_file(&at("link")).unwrap() && !is_file(dir.path()).unwrap());
    }

    #[test]
    fn a_broken_link_is_an_error_with_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("tokenizer.json");
        symlink("../blobs/1", &link).unwrap();
        let error = exists(&link).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Input);
        assert!(error.to_string().contains("tokenizer.json: is a link to ../blobs/1"), "{error}");
        assert!(has_entry(&link).unwrap() && resolved(&link).unwrap().is_none());
    }

    #[test]
    fn an_inaccessible_path_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        symlink("round", dir.path().join("round")).unwrap();
        let too_long = dir.path().join("n".repeat(300));
        for path in [dir.path().join("round"), too_long] {
            assert_eq!(exists(&path).unwrap_err().kind, ErrorKind::Io, "{}", path.display());
            assert_eq!(is_directory(&path).unwrap_err().kind, ErrorKind::Io);
        }
    }
}
