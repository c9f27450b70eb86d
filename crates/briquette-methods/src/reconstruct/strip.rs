//! Rows that are settled together, a column at a time, with errors carried into the columns that follow.

use crate::reconstruct::InverseFactor;
use crate::reconstruct::product::{StridedMatrix, add_product};
use std::ops::Range;

/// Columns after which errors are carried into all that follow; within them, each error is carried at once.
pub(crate) const BLOCK: usize = 128;

/// Rows of a strip. It does not follow from the number of threads, so that results do not.
pub(crate) const STRIP: usize = 64;

/// A number for each row of a strip; those of rows that a last strip lacks are 0.
pub(crate) type Lanes = [f32; STRIP];

/// Up to [`STRIP`] rows of weights, and what the errors made so far add to their columns.
pub(crate) struct RowStrip<'a> {
    weights: &'a mut [f32],
    factor: &'a InverseFactor,
    /// `-Σ_j e_j·U_jk / U_jj` over the columns `j` that are settled, for each column `k` in order.
    carried: Vec<Lanes>,
    errors: Vec<Lanes>,
}

impl<'a> RowStrip<'a> {
    /// Whole rows; the weights of dead inputs become 0.
    pub(crate) fn new(weights: &'a mut [f32], factor: &'a InverseFactor) -> Self {
        for row in weights.chunks_exact_mut(factor.n_cols()) {
            let dead = row.iter_mut().zip(factor.is_dead()).filter(|(_, is_dead)| **is_dead);
            dead.for_each(|(weight, _)| *weight = 0.0);
        }
        let carried = vec![[0.0; STRIP]; factor.n_cols()];
        Self { weights, factor, carried, errors: Vec::new() }
    }

    /// How many rows there are.
    pub(crate) fn n_rows(&self) -> usize {
        self.weights.len() / self.factor.n_cols()
    }

    /// The weights of the column that comes `k`-th, moved against the errors of those before it.
    pub(crate) fn column(&self, k: usize) -> Lanes {
        let (col, mut lanes) = (self.factor.order()[k], self.carried[k]);
        for (lane, row) in lanes.iter_mut().zip(self.weights.chunks_exact(self.factor.n_cols())) {
            *lane += row[col];
        }
        lanes
    }

    /// Settles some columns, all before them being settled: `settle` makes of the `k`-th column's weights what they are to be.
    pub(crate) fn sweep(&mut self, block: Range<usize>, mut settle: impl FnMut(&Self, usize, Lanes) -> Lanes) {
        let n = self.factor.n_cols();
        self.errors.clear();
        self.errors.resize(block.len(), [0.0; STRIP]);
        for k in block.clone() {
            let wanted = self.column(k);
            let settled = settle(self, k, wanted);
            let (col, error) = (self.factor.order()[k], &mut self.errors[k - block.start]);
            *error = std::array::from_fn(|lane| wanted[lane] - settled[lane]);
            self.weights.chunks_exact_mut(n).zip(settled).for_each(|(row, settled)| row[col] = settled);
            let Some(carry) = self.factor.carry() else { continue };
            let within = k + 1..block.end;
            for (carried, &share) in self.carried[within.clone()].iter_mut().zip(&carry[k * n..][within]) {
                carried.iter_mut().zip(&*error).for_each(|(carried, error)| *carried -= share * error);
            }
        }
        let (Some(carry), true) = (self.factor.carry(), block.end < n) else { return };
        let shares =
            StridedMatrix::new(&carry[block.start * n + block.end..], n, block.len(), n - block.end).transposed();
        let errors = StridedMatrix::new(self.errors.as_flattened(), STRIP, block.len(), STRIP);
        add_product(self.carried[block.end..].as_flattened_mut(), STRIP, -1.0, shares, errors);
    }
}

/// `0..n` in runs of `size`, the last of which may be shorter.
pub(crate) fn blocks(n: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(size).map(move |start| start..n.min(start + size))
}
