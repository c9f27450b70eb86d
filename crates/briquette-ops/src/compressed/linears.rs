//! Products of one input with several weights.

use super::cube;
use super::host_or_cuda::WeightInfo;
use super::int8_blocks::CodedLinear;
use super::quantized::linear;
use briquette_cpu::ActivationGrid;
use burn::tensor::Tensor;

/// Computes [`linear`](super::linear()) of one input with several weights.
///
/// A GPU quantizes the input once if all weights take the same codes.
///
/// # Panics
/// See [`linear`](super::linear()).
pub fn linears<const D: usize>(x: Tensor<D>, layers: &[CodedLinear]) -> Vec<Tensor<D>> {
    let Some(grid) = shared_grid(layers) else {
        return layers.iter().map(|layer| linear(x.clone(), &layer.weights, layer.bias.clone())).collect();
    };
    let x = match layers[0].weights.multiplies_before() {
        Some(columns) => columns.multiply(x),
        None => x,
    };
    cube::linears(x, layers, grid)
}

/// Returns the grid of activations if all weights are on a GPU, multiply codes by codes, and have as many inputs.
fn shared_grid(layers: &[CodedLinear]) -> Option<ActivationGrid> {
    let first = &layers.first()?.weights;
    let is_alike = |layer: &CodedLinear| {
        let weights = &layer.weights;
        let is_placed = weights.placed.on_host().is_none() && weights.placed.n_bits() == 8;
        is_placed && weights.takes_codes_of(first)
    };
    first.grid.filter(|grid| !grid.is_fixed() && layers.len() > 1 && layers.iter().all(is_alike))
}
