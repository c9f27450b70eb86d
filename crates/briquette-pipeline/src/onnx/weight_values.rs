//! Weights of a checkpoint as f32, and sources of codes that are computed from them.

use super::pack::ByteSink;
use briquette_core::rows::to_f32;
use briquette_core::{Error, OutputAxis, Result, Rows};
use briquette_formats::io::tensor::read_outputs;
use briquette_formats::{Checkpoint, TensorInfo, TensorSource};
use briquette_graph::to_onnx::WeightBytes;
use std::collections::BTreeMap;

/// The bytes of rows that are read at once.
const PIECE: usize = 8 << 20;

/// Computes codes and their scales from weights.
pub(super) trait CodeSource {
    /// Passes the bytes of a tensor to `to`, and returns whether it has any: else it is stored as in the checkpoint.
    fn stream(&self, name: &str, bytes: WeightBytes, to: &mut ByteSink) -> Result<bool>;
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
        check_finite(name, &values)?;
        Ok(values)
    }

    /// Calls `each` with some rows `[out, in]` of a matrix at once, in order, and returns its number of columns.
    ///
    /// # Errors
    /// See [`read`](Self::read). Also errors of `each`.
    pub(super) fn for_each_rows(
        &self,
        name: &str,
        axis: OutputAxis,
        each: &mut dyn FnMut(&mut [f32]) -> Result<()>,
    ) -> Result<usize> {
        let (index, info) = (self.place(name)?, self.info(name)?);
        let (rows, width) = (Rows::of(&info.shape, axis), info.dtype.n_bits() / 8);
        let step = match self.checkpoint.reads_ranges(index) {
            true => (PIECE / (rows.n_cols * width).max(1)).max(1),
            false => rows.n_rows.max(1),
        };
        let (mut own, mut bytes, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for start in (0..rows.n_rows).step_by(step) {
            let range = start..(start + step).min(rows.n_rows);
            let n = range.len() * rows.n_cols;
            bytes.resize(n * width, 0);
            if rows.axis.is_turned() {
                own.resize(n * width, 0);
                read_outputs(self.checkpoint, index, rows, &range, &mut own)?;
                Rows { n_rows: range.len(), ..rows }.turn(&own, &mut bytes, width);
            } else {
                self.checkpoint.read(index, start * rows.n_cols * width, &mut bytes)?;
            }
            values.resize(n, 0.0);
            to_f32(&bytes, info.dtype, &mut values);
            check_finite(name, &values)?;
            each(&mut values)?;
        }
        Ok(rows.n_cols)
    }
}

/// Refuses weights that are not finite.
fn check_finite(name: &str, values: &[f32]) -> Result<()> {
    let Some(value) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
    Err(Error::refused(format!("found {value}, which int8 cannot hold; repair the model")).at(name))
}
