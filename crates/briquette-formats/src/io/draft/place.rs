//! Where an output may be written: away from all inputs, and in place of an earlier output only.

use crate::io::{contained, model_dir, presence, sums};
use briquette_core::{Error, Remedy, Result, shown_path};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Returns the absolute path. `..` after a missing component removes that component, as it cannot be a link.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(|source| Error::io("cannot resolve", path, source))?;
    let mut found = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir && !presence::exists(&found)? {
            found.pop();
        } else {
            found.push(part);
        }
    }
    Ok(found)
}

pub(super) fn exists_error(target: &Path) -> Error {
    Error::refused("the output exists; choose another").at(shown_path(target)).with_remedy(Remedy::Replace)
}

/// Refuses an output path that is, contains, or lies inside an input.
///
/// # Errors
/// Refused: the paths overlap. The error names both.
pub fn check_apart(target: &Path, inputs: &[&Path]) -> Result<()> {
    for input in inputs {
        if lies_in(target, input)? || lies_in(input, target)? {
            let input = shown_path(input);
            let message = format!("the output may not be, contain or lie inside the input {input}; choose another");
            return Err(Error::refused(message).at(shown_path(target)));
        }
    }
    Ok(())
}

pub(super) fn check_target(target: &Path, inputs: &[&Path], replace: bool) -> Result<()> {
    check_apart(target, inputs)?;
    let Some(metadata) = presence::entry_metadata(target)? else { return Ok(()) };
    if !replace {
        return Err(exists_error(target));
    }
    let is_empty = metadata.is_dir() && presence::entries(target)?.is_empty();
    if is_empty { Ok(()) } else { check_is_ours(target) }
}

/// Returns whether `inner` or one of its ancestors is `outer`, compared by device and inode.
///
/// # Errors
/// Io: one of the paths cannot be accessed.
pub(super) fn lies_in(inner: &Path, outer: &Path) -> Result<bool> {
    let Some(outer) = identity(outer)? else { return Ok(false) };
    let inner = presence::resolved_ancestor(inner)?.map(|(_, resolved)| resolved).unwrap_or_default();
    for path in inner.ancestors() {
        if identity(path)? == Some(outer) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the device and inode of a path, unless it is missing or a broken link.
fn identity(path: &Path) -> Result<Option<(u64, u64)>> {
    let Some(path) = presence::resolved(path)? else { return Ok(None) };
    Ok(presence::metadata(&path)?.map(|metadata| (metadata.dev(), metadata.ino())))
}

/// Refuses a directory that Briquette did not write: without sums, or with files that are not in the sums.
///
/// # Errors
/// - Refused: the directory is not an output of Briquette, or has another file. The error names it.
/// - Io: the directory cannot be read.
pub(super) fn check_is_ours(directory: &Path) -> Result<()> {
    let refused = |found: &str, path: &Path| {
        let message = format!("{found}; only an output of briquette is replaced, move or remove this yourself");
        Error::refused(message).at(shown_path(path))
    };
    let not_ours = || refused("exists and is not an output of briquette", directory);
    let sums = contained::open(directory, Path::new(sums::FILE_NAME)).and_then(|file| sums::read(&file));
    let sums = sums.map_err(|error| if error.is_bad_input() { not_ours() } else { error })?;
    if ![model_dir::MANIFEST, model_dir::ONNX_MARK].iter().any(|mark| sums.contains_key(*mark)) {
        return Err(not_ours());
    }
    for path in sums::files_below(directory)? {
        let name = path.to_string_lossy();
        if !sums::is_uncovered(&name) && !sums.contains_key(&*name) {
            return Err(refused("is a file that briquette did not write", &directory.join(path)));
        }
    }
    Ok(())
}
