//! A source of tensors in which some vectors have other values.

use briquette_core::Result;
use briquette_formats::{TensorInfo, TensorSource};
use std::collections::BTreeMap;
use std::ops::Range;

/// A source of tensors in which some vectors have other values, by the index of the tensor.
///
/// These are updated tensors, so errors are measured against the source.
pub struct ReplacedVectors<'a> {
    source: &'a dyn TensorSource,
    vectors: BTreeMap<usize, NewVector>,
}

/// The new values of a vector, in rows of `n_cols`.
pub struct NewVector {
    /// The values.
    pub values: Vec<f32>,
    /// The length of a row.
    pub n_cols: usize,
}

impl<'a> ReplacedVectors<'a> {
    /// Replaces vectors of a source.
    pub fn new(source: &'a dyn TensorSource, vectors: BTreeMap<usize, NewVector>) -> Self {
        Self { source, vectors }
    }
}

impl TensorSource for ReplacedVectors<'_> {
    fn below(&self) -> Option<&dyn TensorSource> {
        Some(self.source)
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.source.read(index, start, out)
    }

    fn updated(&self, index: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        match self.vectors.get(&index) {
            Some(NewVector { values, n_cols }) => Ok(values[rows.start * n_cols..rows.end * n_cols].to_vec()),
            None => self.source.updated(index, rows),
        }
    }
}
