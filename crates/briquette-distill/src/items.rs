//! The items of a step: rows of the data in micro-batches, or a ready batch.

use crate::traced::{TrainingBatch, TrainingData};
use briquette_core::{Error, Result};
use burn::tensor::Device;

/// The items of a step.
pub(crate) enum Items<'a, I> {
    /// Rows of the data, in micro-batches that fit in memory.
    Rows(&'a dyn TrainingData<Input = I>, &'a [usize]),
    /// A ready batch, taken in one pass.
    Batch(&'a TrainingBatch<I>),
}

impl<I> Clone for Items<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Items<'_, I> {}

impl<I: Clone> Items<'_, I> {
    /// Returns the number of micro-batches of `at_once` items.
    pub(crate) fn n_turns(self, at_once: usize) -> usize {
        match self {
            Self::Rows(_, rows) => rows.len().div_ceil(at_once),
            Self::Batch(_) => 1,
        }
    }

    /// Returns a micro-batch, and its share of all items.
    pub(crate) fn turn(self, index: usize, at_once: usize, device: &Device) -> Result<(TrainingBatch<I>, f64)> {
        let (data, rows) = match self {
            Self::Batch(batch) => return Ok((batch.clone(), 1.0)),
            Self::Rows(data, rows) => (data, rows),
        };
        let turn = &rows[index * at_once..rows.len().min((index + 1) * at_once)];
        let batch = data.batch(turn, device)?;
        if batch.rows.len() != turn.len() {
            let message = format!("the data ended early: found {} items of {}", batch.rows.len(), turn.len());
            return Err(Error::input(message));
        }
        Ok((batch, turn.len() as f64 / rows.len() as f64))
    }
}
