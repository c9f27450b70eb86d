//! Rows that are processed together, one column at a time, with errors carried into later columns.

use crate::reconstruct::InverseFactor;
use crate::reconstruct::product::{StridedMatrix, add_product};
use std::ops::Range;

/// The block size in columns: errors are carried immediately within a block, and after the block into all later
/// columns.
pub(crate) const BLOCK: usize = 128;

/// The number of rows of a strip. It is fixed, so that results do not depend on the number of threads.
pub(crate) const STRIP: usize = 64;

/// A number for each row of a strip. It is 0 for the missing rows of the last strip.
pub(crate) type Lanes = [f32; STRIP];

/// Up to [`STRIP`] rows of weights, and the updates of their columns from the errors so far.
pub(crate) struct RowStrip<'a> {
    weights: &'a mut [f32],
    factor: &'a InverseFactor,
    /// `-Σ_j e_j·U_jk / U_jj` over the processed columns `j`, for each column `k` in order.
    carried: Vec<Lanes>,
    errors: Vec<Lanes>,
}

impl<'a> RowStrip<'a> {
    /// Creates a strip of whole rows.
    pub(crate) fn new(weights: &'a mut [f32], factor: &'a InverseFactor) -> Self {
        let carried = vec![[0.0; STRIP]; factor.n_cols()];
        Self { weights, factor, carried, errors: Vec::new() }
    }

    /// Returns the number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.weights.len() / self.factor.n_cols()
    }

    /// Returns the updated weights of the `k`-th column in order.
    pub(crate) fn column(&self, k: usize) -> Lanes {
        let (col, mut lanes) = (self.factor.order()[k], self.carried[k]);
        for (lane, row) in lanes.iter_mut().zip(self.weights.chunks_exact(self.factor.n_cols())) {
            *lane += row[col];
        }
        lanes
    }

    /// Processes a block of columns after all earlier blocks. `settle` maps the `k`-th column's weights to
    /// their final values.
    pub(crate) fn sweep(&mut self, block: Range<usize>, mut settle: impl FnMut(&Self, usize, Lanes) -> Lanes) {
        self.begin(&block);
        for k in block.clone() {
            let wanted = self.column(k);
            let settled = settle(self, k, wanted);
            self.settle(&block, k, &wanted, &settled);
        }
        self.end(&block);
    }

    /// Begins a block of columns after all earlier blocks.
    pub(crate) fn begin(&mut self, block: &Range<usize>) {
        self.errors.clear();
        self.errors.resize(block.len(), [0.0; STRIP]);
    }

    /// Gives the `k`-th column its final values, and carries their errors from the wanted values into the later columns of the
    /// block.
    pub(crate) fn settle(&mut self, block: &Range<usize>, k: usize, wanted: &Lanes, settled: &Lanes) {
        let n = self.factor.n_cols();
        let (col, error) = (self.factor.order()[k], &mut self.errors[k - block.start]);
        *error = std::array::from_fn(|lane| wanted[lane] - settled[lane]);
        self.weights.chunks_exact_mut(n).zip(settled).for_each(|(row, &settled)| row[col] = settled);
        let Some(carry) = self.factor.carry() else { return };
        let within = k + 1..block.end;
        for (carried, &share) in self.carried[within.clone()].iter_mut().zip(&carry[k * n..][within]) {
            carried.iter_mut().zip(&*error).for_each(|(carried, error)| *carried -= share * error);
        }
    }

    /// Carries the errors of a whole block into all later columns.
    pub(crate) fn end(&mut self, block: &Range<usize>) {
        let n = self.factor.n_cols();
        let (Some(carry), true) = (self.factor.carry(), block.end < n) else { return };
        let shares =
            StridedMatrix::new(&carry[block.start * n + block.end..], n, block.len(), n - block.end).transposed();
        let errors = StridedMatrix::new(self.errors.as_flattened(), STRIP, block.len(), STRIP);
        add_product(self.carried[block.end..].as_flattened_mut(), STRIP, -1.0, shares, errors);
    }
}

/// Returns `0..n` in runs of `size`; the last run may be shorter.
pub(crate) fn blocks(n: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(size).map(move |start| start..n.min(start + size))
}
