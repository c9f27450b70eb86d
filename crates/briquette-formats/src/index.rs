//! Sharded checkpoints: an index that says which file each tensor is in.

use crate::{InputFile, json, json::UniqueMap, limits};
use briquette_core::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The file of each tensor, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Paths are relative to the index and stay inside its directory.
    pub weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads `*.index.json`.
    ///
    /// # Errors
    /// Input where it is not an index, or a file it names lies outside its directory.
    pub fn read(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Raw {
            weight_map: UniqueMap<String>,
        }
        let bytes = InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)?;
        let raw: Raw = json::parse(&bytes, "the index", path)?;
        for (tensor, file) in &raw.weight_map.0 {
            if !stays_inside(file) {
                let message = format!(
                    "tensor {tensor:?} is said to be in {file:?}, expected a file beside the index; do not trust it"
                );
                return Err(Error::input(message).at(path.display()));
            }
        }
        if raw.weight_map.0.is_empty() {
            return Err(Error::input("the index names no tensor; it is damaged").at(path.display()));
        }
        Ok(Self { weight_map: raw.weight_map.0 })
    }

    /// The files named, each once, in order.
    pub fn files(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    /// Refuses tensors that are missing from `file`, or there without the index knowing.
    ///
    /// # Errors
    /// Input, naming the first such tensor.
    pub fn check_file(&self, file: &str, found: &[String], path: &Path) -> Result<()> {
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        for name in &found {
            if self.weight_map.get(*name).map(String::as_str) != Some(file) {
                let message = format!(
                    "tensor {name:?} is here, but the index does not say so; the shards do not belong together"
                );
                return Err(Error::input(message).at(path.display()));
            }
        }
        let missing = self.weight_map.iter().find(|(name, place)| *place == file && !found.contains(name.as_str()));
        match missing {
            Some((name, _)) => {
                let message =
                    format!("tensor {name:?} is missing, the index says it is here; the shards do not belong together");
                Err(Error::input(message).at(path.display()))
            }
            None => Ok(()),
        }
    }
}

/// The JSON of an index over our own shards.
pub fn to_json(weight_map: &BTreeMap<String, String>, total_size: u64) -> Vec<u8> {
    let value = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let mut bytes = format!("{value:#}").into_bytes();
    bytes.push(b'\n');
    bytes
}

/// Whether a relative path names something below the directory it is relative to.
pub fn stays_inside(path: &str) -> bool {
    let is_plain = !path.is_empty() && !path.contains(['\0', '\\']);
    is_plain && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The directory of a file, never empty.
pub(crate) fn parent_of(path: &Path) -> PathBuf {
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

    #[test]
    fn an_index_is_held_against_its_shards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index.json");
        std::fs::write(&path, r#"{"metadata":{},"weight_map":{"a":"1","b":"1","c":"2"}}"#).unwrap();
        let index = Index::read(&path).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert!(index.check_file("1", &names(&["a", "b"]), &path).is_ok());
        assert!(index.check_file("1", &names(&["a"]), &path).unwrap_err().to_string().contains("missing"));
        assert!(
            index.check_file("1", &names(&["a", "b", "c"]), &path).unwrap_err().to_string().contains("does not say")
        );
        for bad in
            [r#"{"weight_map":{"a":"../x"}}"#, r#"{"weight_map":{}}"#, "{}", r#"{"weight_map":{"a":"1","a":"2"}}"#]
        {
            std::fs::write(&path, bad).unwrap();
            assert!(Index::read(&path).is_err(), "{bad}");
        }
    }
}
