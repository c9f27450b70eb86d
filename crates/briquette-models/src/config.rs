//! The JSON files of a model directory.

use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, ModelDir, json, limits};
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

    pub(crate) fn model_type(&self) -> Result<Option<String>> {
        Ok(self.read::<ModelType>("config.json")?.and_then(|config| config.model_type))
    }

    /// Returns an error about config.json.
    pub(crate) fn config_error(&self, message: impl Into<String>) -> Error {
        Error::input(message).at(self.file("config.json").display())
    }
}
