//! Sharded checkpoints: an index lists the file of each tensor.

use crate::io::paths::stays_inside;
use crate::{InputFile, TensorInfo, json, limits};
use briquette_core::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::path::Path;

/// The file of each tensor, by name. All names are in one string, as there may be millions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// The files in order, with their numbers of tensors. Paths are relative to the index and stay inside its
    /// directory.
    files: BTreeMap<String, usize>,
    text: String,
    /// Sorted by name.
    tensors: Vec<IndexedTensor>,
}

/// The location of a tensor's name, and the number of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexedTensor {
    start: u32,
    end: u32,
    file: u32,
}

impl Index {
    /// Reads `*.index.json`.
    ///
    /// # Errors
    /// Input: the file is not an index, or lists a file outside its directory.
    pub fn read(file: &InputFile) -> Result<Self> {
        #[derive(Deserialize)]
        struct Raw {
            weight_map: Option<RawMap>,
        }
        let (path, bytes) = (file.path(), file.read_all(limits::MAX_JSON_BYTES)?);
        let raw: Raw = json::parse(&bytes, "the index", path)?;
        let Some(weight_map) = raw.weight_map else {
            let message =
                "found JSON without a weight_map, expected an index of shards; give its directory or a weight file";
            return Err(Error::input(message).at(path.display()));
        };
        Self::checked(weight_map).map_err(|error| error.at(path.display()))
    }

    fn checked(RawMap { text, mut tensors, files }: RawMap) -> Result<Self> {
        let name = |entry: &IndexedTensor| &text[entry.start as usize..entry.end as usize];
        if let Some(outside) = files.keys().find(|file| !stays_inside(file)) {
            let first = tensors.iter().find(|entry| files.get(outside) == Some(&entry.file)).map_or("", name);
            return Err(Error::input(format!(
                "found tensor {first:?} in {outside:?}, expected a file beside the index; do not trust this checkpoint"
            )));
        }
        if tensors.is_empty() {
            return Err(Error::input("the index lists no tensor; it is damaged"));
        }
        tensors.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if let Some(pair) = tensors.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err(Error::input(format!("key {:?} occurs twice; the index is damaged", name(&pair[0]))));
        }
        // Files were numbered in the order of first use. From here on they are numbered in the order of their
        // names.
        let mut place = vec![0; files.len()];
        files.values().zip(0..).for_each(|(met, sorted)| place[*met as usize] = sorted);
        let mut counts = vec![0; files.len()];
        for entry in &mut tensors {
            entry.file = place[entry.file as usize];
            counts[entry.file as usize] += 1;
        }
        Ok(Self { files: files.into_keys().zip(counts).collect(), text, tensors })
    }

    /// Returns the files in the index, each once, in order.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    fn name(&self, entry: &IndexedTensor) -> &str {
        &self.text[entry.start as usize..entry.end as usize]
    }

    /// Checks that `file` has exactly the tensors that the index lists for it. So no tensor is found twice.
    ///
    /// # Errors
    /// Input: a tensor is missing or not listed. The error names the first such tensor.
    pub fn check_file(&self, file: &str, found: &[TensorInfo], path: &Path) -> Result<()> {
        let place = self.files.keys().position(|name| name == file).and_then(|place| u32::try_from(place).ok());
        for TensorInfo { name, .. } in found {
            let entry = self.tensors.binary_search_by(|entry| self.name(entry).cmp(name));
            if entry.ok().and_then(|entry| self.tensors.get(entry)).map(|entry| entry.file) != place {
                let message = format!(
                    "found tensor {name:?}, which the index does not list here; the shards do not belong together"
                );
                return Err(Error::input(message).at(path.display()));
            }
        }
        if self.files.get(file).is_none_or(|n| *n == found.len()) {
            return Ok(());
        }
        let mut names: Vec<&str> = found.iter().map(|info| info.name.as_str()).collect();
        names.sort_unstable();
        let is_missing =
            |entry: &&IndexedTensor| Some(entry.file) == place && names.binary_search(&self.name(entry)).is_err();
        let name = self.tensors.iter().find(is_missing).map_or("", |entry| self.name(entry));
        let message =
            format!("tensor {name:?} is missing, but the index lists it here; the shards do not belong together");
        Err(Error::input(message).at(path.display()))
    }
}

/// An index as parsed: tensors in the order of the file, and files in the order of first use.
#[derive(Default)]
struct RawMap {
    text: String,
    tensors: Vec<IndexedTensor>,
    files: BTreeMap<String, u32>,
}

impl<'de> Deserialize<'de> for RawMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawMap;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMap, A::Error> {
                let mut found = RawMap::default();
                let too_long = |_| serde::de::Error::custom("the names are too long");
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    let start = u32::try_from(found.text.len()).map_err(too_long)?;
                    found.text.push_str(&tensor);
                    let end = u32::try_from(found.text.len()).map_err(too_long)?;
                    let n_files = u32::try_from(found.files.len()).map_err(too_long)?;
                    let file = *found.files.entry(file).or_insert(n_files);
                    found.tensors.push(IndexedTensor { start, end, file });
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Returns the JSON of an index for shards written by Briquette.
pub fn to_json(weight_map: &BTreeMap<String, String>, total_size: u64) -> Vec<u8> {
    let value = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let mut bytes = format!("{value:#}").into_bytes();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_compared_with_its_shards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.index.json");
        std::fs::write(&path, r#"{"metadata":{},"weight_map":{"a":"1","b":"1","c":"2"}}"#).unwrap();
        let read = || Index::read(&InputFile::open(&path).unwrap());
        let index = read().unwrap();
        let info = |name: &&str| TensorInfo::checked(name.to_string(), briquette_core::DType::U8, vec![1]).unwrap();
        let names = |names: &[&str]| names.iter().map(info).collect::<Vec<_>>();
        assert!(index.check_file("1", &names(&["a", "b"]), &path).is_ok());
        assert!(index.check_file("1", &names(&["a"]), &path).unwrap_err().to_string().contains("missing"));
        assert!(
            index.check_file("1", &names(&["a", "b", "c"]), &path).unwrap_err().to_string().contains("does not list")
        );
        for bad in
            [r#"{"weight_map":{"a":"../x"}}"#, r#"{"weight_map":{}}"#, "{}", r#"{"weight_map":{"a":"1","a":"2"}}"#]
        {
            std::fs::write(&path, bad).unwrap();
            assert!(read().is_err(), "{bad}");
        }
    }
}
