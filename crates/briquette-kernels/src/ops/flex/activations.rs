//! Rounded activations.

use super::tensor::change;
use crate::activations::ActivationGrid;
use crate::ops::activations::ActivationOps;
use crate::quantize_rows::round_rows;
use briquette_core::float::active_path;
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

impl ActivationOps for Flex {
    fn simulate_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self> {
        change(x, |x| round_rows(active_path(), x, n_cols, grid))
    }
}
