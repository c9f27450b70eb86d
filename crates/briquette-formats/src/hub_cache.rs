//! Directories of the Hugging Face cache that contain models but are not models: the error names the right
//! directory.

use crate::{InputFile, limits};
use std::path::Path;

/// Returns the error message for a directory without weights.
pub(crate) fn no_weights(directory: &Path) -> String {
    let (found, todo) = match snapshot_in(directory) {
        Some(snapshot) => ("the root of a cached model", format!("use the snapshot inside: {snapshot}")),
        None => match model_in(directory) {
            Some(model) => ("a cache of models", format!("use one of them, such as {model}")),
            None => {
                return "found no weights, expected a .safetensors, .pt, .pth, .bin or .bpk file or an index; check the path"
                    .into();
            }
        },
    };
    format!("found {found}, expected the directory of a model; {todo}")
}

/// Returns the snapshot in `refs/main`, or the first snapshot.
fn snapshot_in(root: &Path) -> Option<String> {
    let names = directories_in(&root.join("snapshots"));
    let main = InputFile::open(&root.join("refs/main")).and_then(|file| file.read_all(limits::MAX_SMALL_BYTES));
    let main = main.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let main = main.and_then(|main| names.iter().find(|name| *name == main.trim()));
    let name = main.or(names.first())?;
    Some(root.join("snapshots").join(name).display().to_string())
}

/// Returns a snapshot of the first model in a cache.
fn model_in(cache: &Path) -> Option<String> {
    let names = directories_in(cache);
    names.iter().filter(|name| name.starts_with("models--")).find_map(|name| snapshot_in(&cache.join(name)))
}

fn directories_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = directories.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_cache_gives_an_error_with_the_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("models--a--b");
        assert!(no_weights(dir.path()).starts_with("found no weights"));
        for name in ["snapshots/1111", "snapshots/2222", "refs", "blobs"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        assert!(no_weights(&root).ends_with("models--a--b/snapshots/1111"), "{}", no_weights(&root));
        std::fs::write(root.join("refs/main"), "2222\n").unwrap();
        assert!(no_weights(&root).ends_with("models--a--b/snapshots/2222"), "{}", no_weights(&root));
        assert!(no_weights(dir.path()).contains("such as") && no_weights(dir.path()).ends_with("snapshots/2222"));
        std::fs::write(root.join("refs/main"), "../../elsewhere").unwrap();
        assert!(no_weights(&root).ends_with("snapshots/1111"));
    }
}
