//! Blocks of linear layers that run on codes all at once.

use super::Linear;
use crate::packed::kept_on;
use crate::packed_weights::PackedWeights;
use briquette_ops::compressed::{self, CodedLinear, FeedForwardActivation};
use burn::module::Param;
use burn::tensor::{Bool, Tensor};

/// The codes of a layer, where it has some for the device of `x`, and is not of low rank.
fn coded(layer: &Linear, x: &Tensor<3>) -> Option<CodedLinear> {
    match kept_on(&layer.weight, &x.device()) {
        Some(PackedWeights::Linear(weights)) if layer.down.is_none() => {
            Some(CodedLinear { weights, bias: layer.bias.as_ref().map(Param::val) })
        }
        _ => None,
    }
}

/// Attention of tokens `[batch, length, n_in]` to all that are no padding, where queries, keys and values come of int8 codes; see
/// [`compressed::self_attention`]. `None` where that is not so.
///
/// # Panics
/// If the layers take another width than `x` has, `n_heads` is 0 or does not divide their outputs, or `padding` is not `[batch, length]`.
pub fn self_attention(
    x: &Tensor<3>,
    layers: [&Linear; 3],
    n_heads: usize,
    padding: &Tensor<2, Bool>,
) -> Option<Tensor<3>> {
    let [q, k, v] = layers.map(|layer| coded(layer, x));
    compressed::self_attention(x, [q?, k?, v?], n_heads, padding)
}

/// `down(activation(up(x)))`, where both layers are of int8 codes; see [`compressed::feed_forward`]. `None` where that is not so.
///
/// # Panics
/// If a layer takes another width than what comes before it has.
pub fn feed_forward(x: &Tensor<3>, [up, down]: [&Linear; 2], activation: FeedForwardActivation) -> Option<Tensor<3>> {
    compressed::feed_forward(x, [coded(up, x)?, coded(down, x)?], activation)
}
