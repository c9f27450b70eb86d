//! Weights of a checkpoint as f32, and sources of codes that are computed from them.

use briquette_core::rows::to_f32;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_graph::to_onnx::WeightBytes;
use std::collections::BTreeMap;

/// Computes codes and their scales from weights.
pub(super) trait CodeSource {
    /// Returns the bytes of a tensor; `None` for a tensor that is stored as in the checkpoint.
    fn bytes(&self, name: &str, bytes: WeightBytes) -> Result<Option<Vec<u8>>>;
}

/// Reads weights by name.
pub(super) struct WeightValues<'a> {
    checkpoint: &'a Checkpoint,
    places: BTreeMap<&'a str, usize>,
}

impl<'a> WeightValues<'a> {
    pub(super) fn of(checkpoint: &'a Checkpoint) -> Self {
        let tensors = checkpoint.tensors().iter().enumerate();
        Self { checkpoint, places: tensors.map(|(place, info)| (info.name.as_str(), place)).collect() }
    }

    /// Returns whether the checkpoint has a weight.
    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.places.get(name).copied().ok_or_else(|| Error::bug("the checkpoint lacks this tensor").at(name))
    }

    /// Returns the header of a weight.
    pub(super) fn info(&self, name: &str) -> Result<&TensorInfo> {
        Ok(&self.checkpoint.tensors()[self.place(name)?])
    }

    /// Reads a weight as f32.
    ///
    /// # Errors
    /// - Refused: an element is not finite.
    /// - Io: the file cannot be read.
    pub(super) fn read(&self, name: &str) -> Result<Vec<f32>> {
        let (index, info) = (self.place(name)?, self.info(name)?);
        let (mut bytes, mut values) = (vec![0; info.n_bytes()], vec![0.0; info.n_elements()]);
        self.checkpoint.read(index, 0, &mut bytes)?;
        to_f32(&bytes, info.dtype, &mut values);
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => {
                Err(Error::refused(format!("found {value}, which int8 cannot hold; repair the model")).at(name))
            }
            None => Ok(values),
        }
    }
}
