//! Weights as rows of codes, for groups with too few outputs to fill panels.

use crate::weights::{Int8Weights, to_rows};

/// Weights as rows of codes with their scales, unpacked for one call.
pub(super) struct Unpacked {
    codes: Vec<i8>,
    n_cols: usize,
    pub(super) scales: Vec<f32>,
}

impl Unpacked {
    pub(super) fn new(weights: &impl Int8Weights) -> Self {
        let scales = (0..weights.n_out()).map(|row| weights.scale(row)).collect();
        Self { codes: to_rows(weights), n_cols: weights.n_in(), scales }
    }

    pub(super) fn row(&self, row: usize) -> &[i8] {
        &self.codes[row * self.n_cols..(row + 1) * self.n_cols]
    }
}
