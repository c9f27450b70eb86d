//! The JSON files of a model directory.

use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, ModelDir, TensorSource, json, limits};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The small files of a model directory.
#[derive(Debug, Clone)]
pub(crate) struct Folder(pub(crate) ModelDir);

#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
}

impl Folder {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        Self(checkpoint.model_dir().clone())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Reads a whole file, if it exists.
    pub(crate) fn read_whole(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.0.read(Path::new(name), limits::MAX_JSON_BYTES)
    }

    /// Parses a JSON file, if it exists.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(bytes) = self.read_whole(name)? else { return Ok(None) };
        json::parse(&bytes, "it", &self.file(name)).map(Some)
    }

    /// Parses config.json, which must exist.
    pub(crate) fn config<T: DeserializeOwned>(&self) -> Result<T> {
        let missing = || {
            let message = "it is missing, and it has settings that the weights do not have; put it next to the weights";
            Error::input(message).at(self.file("config.json").display())
        };
        self.read("config.json")?.ok_or_else(missing)
    }

    pub(crate) fn model_type(&self) -> Result<Option<String>> {
        Ok(self.read::<ModelType>("config.json")?.and_then(|config| config.model_type))
    }

    /// Refuses a config.json of another architecture, since equal names and shapes do not imply an equal
    /// network.
    ///
    /// The first of `model_types` is the architecture's own name.
    pub(crate) fn check_model_type(&self, model_types: &[&str]) -> Result<()> {
        match self.model_type()? {
            Some(found) if !model_types.contains(&found.as_str()) => {
                let arch = model_types.first().copied().unwrap_or_default();
                Err(self.config_error(format!(
                    "model_type is {found:?}, which is not a type of {arch}; choose another arch"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error about config.json.
    pub(crate) fn config_error(&self, message: impl Into<String>) -> Error {
        Error::input(message).at(self.file("config.json").display())
    }
}

/// Largest accepted size; sizes are checked before anything is allocated or multiplied.
const MAX_SIZE: usize = 1 << 24;

/// Checks that sizes are above 0 and not too large.
pub(crate) fn check_sizes(sizes: &[usize]) -> Result<(), String> {
    match sizes.iter().find(|&&size| size == 0 || size > MAX_SIZE) {
        Some(size) => Err(format!("a size is {size}, expected 1 to {MAX_SIZE}; correct it")),
        None => Ok(()),
    }
}

/// Checks that the checkpoint has enough tensors for this number of layers.
pub(crate) fn check_layers(n_layers: usize, checkpoint: &Checkpoint) -> Result<(), String> {
    let n_tensors = checkpoint.tensors().len();
    if n_layers > n_tensors {
        return Err(format!("found {n_layers} layers, but only {n_tensors} tensors; correct num_hidden_layers"));
    }
    Ok(())
}

/// Returns whether a checkpoint has a tensor of this name.
pub(crate) fn has_tensor(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.tensors().iter().any(|tensor| tensor.name == name)
}
