//! `briquette-activations.json`: the fixed grids of activations of an output with static int8.

use crate::{Checkpoint, ValueGrid, json, limits};
use briquette_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the file.
pub const FILE_NAME: &str = "briquette-activations.json";
/// The version of a file with grids of values or of layers.
const FIRST: u32 = 1;
/// The version of a file with both.
const BOTH: u32 = 2;

/// The grids of a network's activations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationGrids {
    version: u32,
    /// The grid of each value, by its name in the graph. In a network with attention, these are queries, keys and values.
    #[serde(deserialize_with = "json::unique")]
    pub values: BTreeMap<String, ValueGrid>,
    /// The grid of the inputs of linear layers in a network with attention, by the names of their weights.
    #[serde(default, deserialize_with = "json::unique", skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, ValueGrid>,
}

impl ActivationGrids {
    /// Collects grids of values, and of the inputs of linear layers.
    pub fn new(values: BTreeMap<String, ValueGrid>, layers: BTreeMap<String, ValueGrid>) -> Self {
        let version = if values.is_empty() || layers.is_empty() { FIRST } else { BOTH };
        Self { version, values, layers }
    }

    /// Returns whether each layer has the grid of its own inputs, as in networks with attention.
    pub fn are_of_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Returns the grids as the bytes of their file.
    ///
    /// # Panics
    /// Never: names and numbers are valid JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("names and numbers");
        bytes.push(b'\n');
        bytes
    }

    /// Reads the grids of a checkpoint; none if its layers have no static activations.
    ///
    /// # Errors
    /// - Input: the file is missing or damaged.
    /// - Io: the file cannot be read.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        if checkpoint.static_weights().next().is_none() {
            return Ok(Self::default());
        }
        let stored = checkpoint.stored().map(|stored| &stored.input_grids);
        if let Some(grids) = stored.filter(|grids| !grids.is_empty()) {
            return Ok(Self::new(BTreeMap::new(), grids.clone()));
        }
        let directory = checkpoint.model_dir();
        let path = directory.path().join(FILE_NAME);
        match directory.read(Path::new(FILE_NAME), limits::MAX_SMALL_BYTES)? {
            Some(bytes) => Self::parse(&bytes, &path),
            None => {
                let message = "is missing, and layers have static int8 activations; copy the whole directory again";
                Err(Error::input(message).at(path.display()))
            }
        }
    }

    /// Reads the grids that a quantization-aware training wrote beside its float weights; none if there was no such training.
    ///
    /// # Errors
    /// See [`of`](Self::of).
    pub fn of_training(checkpoint: &Checkpoint) -> Result<Self> {
        let directory = checkpoint.model_dir();
        let found = directory.read(Path::new(FILE_NAME), limits::MAX_SMALL_BYTES)?;
        found.map_or_else(|| Ok(Self::default()), |bytes| Self::parse(&bytes, &directory.path().join(FILE_NAME)))
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let found: Self = json::parse(bytes, "the list of grids", path)?;
        if found.version > BOTH {
            let message = format!("found version {}, expected at most {BOTH}; use a newer briquette", found.version);
            return Err(Error::input(message).at(path.display()));
        }
        let is_bad = |grid: &ValueGrid| !((grid.scale as f32).is_normal() && grid.scale > 0.0);
        match found.values.iter().chain(&found.layers).find(|(_, grid)| is_bad(grid)) {
            Some((name, grid)) => {
                let message = format!("found scale {} for {name:?}, expected a number above 0", grid.scale);
                Err(Error::input(format!("{message}; the file is damaged")).at(path.display()))
            }
            None => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_read_as_they_were_written() {
        let grid = |scale: f32, zero| ValueGrid { scale: f64::from(scale), zero };
        let values = BTreeMap::from([("relu".into(), grid(0.1, 0)), ("layer1.0.bn2".into(), grid(1e-30, 255))]);
        let layers = BTreeMap::from([("q.weight".into(), grid(0.1, 3))]);
        let none = BTreeMap::new;
        for (values, layers, version) in [(values.clone(), none(), 1), (none(), layers.clone(), 1), (values, layers, 2)]
        {
            let grids = ActivationGrids::new(values, layers);
            let text = String::from_utf8(grids.to_bytes()).unwrap();
            assert_eq!(text.contains("layers"), grids.are_of_layers());
            assert!(text.contains(&format!("\"version\": {version}")), "{text}");
            assert_eq!(ActivationGrids::parse(text.as_bytes(), Path::new("a.json")).unwrap(), grids);
        }
    }

    #[test]
    fn damaged_grids_are_refused() {
        let file = |values: &str| format!(r#"{{"version":1,"values":{values}}}"#);
        for (text, expected) in [
            (file(r#"{"a":{"scale":0.0,"zero":0}}"#), "found scale 0 for \"a\", expected a number above 0"),
            (file(r#"{"a":{"scale":-1.0,"zero":0}}"#), "found scale -1 for"),
            (file(r#"{},"layers":{"b":{"scale":0.0,"zero":0}}"#), "found scale 0 for \"b\""),
            (file(r#"{"a":{"scale":1e-60,"zero":0}}"#), "found scale 0"),
            (file(r#"{"a":{"scale":1.0,"zero":256}}"#), "is not valid"),
            (file(r#"{"a":{"scale":1.0,"zero":0},"a":{"scale":1.0,"zero":0}}"#), "occurs twice"),
            (file("{}").replace('1', "3"), "found version 3"),
            ("{".into(), "is not valid"),
        ] {
            let error = ActivationGrids::parse(text.as_bytes(), Path::new("a.json")).unwrap_err();
            assert!(error.exit_code() == 4 && error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
