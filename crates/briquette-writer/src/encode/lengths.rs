//! Computes the lengths of weight norms after directions were pruned.

use crate::plan::{Plan, TensorPlan};
use crate::weight_norm::{NormSums, WeightNorm};
use briquette_core::{Affine, ColumnScales, Error, Result};
use briquette_formats::{InputFile, TensorInfo, TensorSource};
use std::collections::BTreeMap;
use std::ops::Range;

/// A source in which the lengths of weight norms are multiplied by `‖m∘v‖/‖v‖`.
pub(super) struct Rescaled<'a> {
    source: &'a dyn TensorSource,
    /// New lengths and the number of columns, by index of the tensor.
    lengths: BTreeMap<usize, (Vec<f32>, usize)>,
}

impl<'a> Rescaled<'a> {
    /// Computes the new lengths from sums over encoded directions, each with the index of its tensor.
    ///
    /// # Errors
    /// Refused: a direction became 0, so the layer would divide by 0.
    pub(super) fn of(
        plan: &Plan,
        source: &'a dyn TensorSource,
        parts: impl Iterator<Item = (usize, NormSums)>,
    ) -> Result<Self> {
        let mut sums: BTreeMap<usize, NormSums> = BTreeMap::new();
        parts.for_each(|(index, part)| sums.entry(index).or_default().merge(part));
        let mut lengths = BTreeMap::new();
        for (index, sums) in sums {
            let (tensor, norm) = (&plan.tensors[index], &plan.norms[&index]);
            check_nonzero(tensor, norm, &sums)?;
            if tensor.prune.is_some() {
                let n_cols = plan.tensors[norm.lengths].rows().n_cols;
                lengths.insert(norm.lengths, (rescaled(norm, &sums), n_cols));
            }
        }
        Ok(Self { source, lengths })
    }
}

/// Refuses a direction that became 0.
fn check_nonzero(tensor: &TensorPlan, norm: &WeightNorm, sums: &NormSums) -> Result<()> {
    let mut norms = norm.measured.squares.iter().zip(&sums.is_nonzero);
    let Some(place) = norms.position(|(&square, &is_nonzero)| square > 0.0 && !is_nonzero) else { return Ok(()) };
    let message = format!(
        "all weights of norm {place} round to 0, and weight norm divides by it; use more bits or a scale per row, or exclude the tensor"
    );
    Err(Error::refused(message).at(tensor.culprit()))
}

/// Returns `g·‖m∘v‖/‖v‖`, or `g` if `v` is 0.
fn rescaled(norm: &WeightNorm, sums: &NormSums) -> Vec<f32> {
    let squares = norm.measured.squares.iter().zip(&sums.squares);
    let of = |(&length, (&square, &kept)): (&f32, (&f64, &f64))| match square > 0.0 && kept != square {
        true => (f64::from(length) * (kept / square).sqrt()) as f32,
        false => length,
    };
    norm.measured.lengths.iter().zip(squares).map(of).collect()
}

impl TensorSource for Rescaled<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn read(&self, index: usize, start: usize, out: &mut [u8]) -> Result<()> {
        self.source.read(index, start, out)
    }

    fn reads_ranges(&self, index: usize) -> bool {
        self.source.reads_ranges(index)
    }

    fn affines(&self, index: usize, rows: Range<usize>) -> Result<Vec<Affine>> {
        self.source.affines(index, rows)
    }

    fn columns(&self, index: usize) -> Result<Option<ColumnScales>> {
        self.source.columns(index)
    }

    fn keep(&self, index: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        self.source.keep(index, rows)
    }

    fn updated(&self, index: usize, rows: Range<usize>) -> Result<Vec<f32>> {
        match self.lengths.get(&index) {
            Some((lengths, n_cols)) => Ok(lengths[rows.start * n_cols..rows.end * n_cols].to_vec()),
            None => self.source.updated(index, rows),
        }
    }

    fn files(&self) -> Vec<&InputFile> {
        self.source.files()
    }
}
