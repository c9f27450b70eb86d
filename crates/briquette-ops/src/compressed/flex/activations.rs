//! Fake-quantized activations.

use crate::compressed::activations::ActivationOps;
use crate::flex_tensor::change;
use briquette_core::simd::active_level;
use briquette_cpu::ActivationGrid;
use briquette_cpu::round_rows;
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

impl ActivationOps for Flex {
    fn fake_quantize_activations(x: FloatTensor<Self>, n_cols: usize, grid: ActivationGrid) -> FloatTensor<Self> {
        change(x, |x| round_rows(active_level(), x, n_cols, grid))
    }
}
