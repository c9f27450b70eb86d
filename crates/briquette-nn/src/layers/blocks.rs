//! Fused blocks of linear layers that run on codes.

use super::Linear;
use crate::module::show;
use crate::packed::kept_on;
use crate::packed_weights::PackedWeights;
use briquette_ops::compressed::{self, CodeGrid, CodedLinear, FeedForwardActivation};
use burn::module::Param;
use burn::tensor::{Bool, Tensor};

/// Returns the codes of a layer on the device of `x`; `None` for floats and low-rank layers.
fn coded<const D: usize>(layer: &Linear, x: &Tensor<D>) -> Option<CodedLinear> {
    match kept_on(&layer.weight, &x.device()) {
        Some(PackedWeights::Linear(weights)) if layer.down.is_none() => {
            Some(CodedLinear { weights, bias: layer.bias.as_ref().map(Param::val) })
        }
        _ => None,
    }
}

/// Computes several layers of one input, `[.., d_input]`. A GPU quantizes the input of int8 layers once.
///
/// # Panics
/// If the last dimension is not the number of inputs of each layer.
pub fn linears<const D: usize>(x: &Tensor<D>, layers: &[&Linear]) -> Vec<Tensor<D>> {
    match layers.iter().map(|layer| coded(layer, x)).collect::<Option<Vec<_>>>() {
        Some(coded) => {
            layers.iter().for_each(|layer| show(&layer.weight, x));
            compressed::linears(x.clone(), &coded)
        }
        None => layers.iter().map(|layer| layer.forward(x.clone())).collect(),
    }
}

/// Computes bidirectional self-attention of `[batch, length, n_in]` from query, key and value layers with int8
/// codes.
///
/// `operands` are fixed grids of queries, keys and values. Padding is masked; see [`compressed::self_attention`]. Returns `None` if a
/// layer has no such codes.
///
/// # Panics
/// If the input width of a layer differs from `x`, `n_heads` is 0 or does not divide the outputs, or `padding`
/// is not `[batch, length]`.
pub fn self_attention(
    x: &Tensor<3>,
    layers: [&Linear; 3],
    operands: Option<[CodeGrid; 3]>,
    n_heads: usize,
    padding: &Tensor<2, Bool>,
) -> Option<Tensor<3>> {
    let [q, k, v] = layers.map(|layer| coded(layer, x));
    compressed::self_attention(x, [q?, k?, v?], operands, n_heads, padding)
}

/// Computes `down(activation(up(x)))` from layers with int8 codes.
///
/// See [`compressed::feed_forward`]. Returns `None` if a layer has no such codes.
///
/// # Panics
/// If the input width of a layer differs from the layer before it.
pub fn feed_forward(x: &Tensor<3>, [up, down]: [&Linear; 2], activation: FeedForwardActivation) -> Option<Tensor<3>> {
    compressed::feed_forward(x, [coded(up, x)?, coded(down, x)?], activation)
}
