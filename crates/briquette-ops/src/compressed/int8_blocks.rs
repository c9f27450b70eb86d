//! Encoder blocks with all products in 8-bit codes, on the CPU.

use super::device::is_cpu;
use super::weights::{HostLinear, LinearWeights};
use briquette_core::simd::SimdLevel;
use briquette_cpu::float::coarse_gelu;
use briquette_cpu::{ActivationGrid, CodeGrid};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, DType, Tensor};

/// A linear layer in codes, with an optional bias.
#[derive(Debug, Clone)]
pub struct CodedLinear {
    /// The quantized weights.
    pub weights: LinearWeights,
    /// `[n_out]`.
    pub bias: Option<Tensor<1>>,
}

/// The activation function of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardActivation {
    /// `x * Phi(x)` within 6e-5, which suffices because 8-bit codes follow.
    Gelu,
    /// `max(x, 0)`.
    Relu,
}

impl FeedForwardActivation {
    pub(super) fn function(self) -> fn(SimdLevel, &mut [f32]) {
        match self {
            Self::Gelu => coarse_gelu,
            Self::Relu => |_, x| x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
        }
    }
}

/// Encoder blocks as single operations of a backend.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub trait Int8BlockOps: Backend {
    /// Computes self-attention of tokens `[batch, length, n_in]`, with optional padding.
    fn int8_self_attention(
        x: FloatTensor<Self>,
        layers: [CodedLinear; 3],
        operands: [ActivationGrid; 3],
        n_heads: usize,
        padding: Vec<bool>,
    ) -> FloatTensor<Self>;

    /// Computes a feed-forward block over the last dimension.
    fn int8_feed_forward(
        x: FloatTensor<Self>,
        layers: [CodedLinear; 2],
        activation: FeedForwardActivation,
    ) -> FloatTensor<Self>;
}

/// Returns whether the CPU can multiply quantized rows of `x` by the int8 codes of a layer, without autodiff.
fn takes<const D: usize>(x: &Tensor<D>, layer: &CodedLinear) -> bool {
    let is_int8 = matches!(layer.weights.placed.on_host(), Some(HostLinear::Int8(_) | HostLinear::Sparse(_)));
    let has_inputs = layer.weights.n_in() > 0; // Without inputs, the result is the bias.
    is_cpu(&x.device()) && x.dtype() == DType::F32 && is_int8 && has_inputs && layer.weights.grid.is_some()
}

/// Computes self-attention of tokens `[batch, length, n_in]` from query, key and value layers.
///
/// `operands` are the fixed grids of queries, keys and values, if they have any. Padding is masked. See
/// [`int8_self_attention`](briquette_cpu::int8_self_attention()). Returns `None` if a layer does not have int8 codes and quantized
/// activations on the CPU. The same holds if the layers quantize tokens differently, if 4 does not divide the width of a head, or
/// if a fixed grid has another code of 0 than 128.
///
/// # Panics
/// If the shapes disagree.
pub fn self_attention(
    x: &Tensor<3>,
    layers: [CodedLinear; 3],
    operands: Option<[CodeGrid; 3]>,
    n_heads: usize,
    padding: &Tensor<2, Bool>,
) -> Option<Tensor<3>> {
    let is_alike = layers.iter().all(|layer| takes(x, layer) && layer.weights.takes_codes_of(&layers[0].weights));
    let has_other_zero = operands.is_some_and(|grids| grids.iter().any(|grid| grid.zero != 128));
    if !is_alike || has_other_zero || !(layers[0].weights.n_out() / n_heads.max(1)).is_multiple_of(4) {
        return None;
    }
    let operands = operands.map_or([ActivationGrid::Symmetric; 3], |grids| grids.map(ActivationGrid::Fixed));
    let mut padding: Vec<bool> = padding.clone().into_data().iter().collect();
    if !padding.contains(&true) {
        padding.clear();
    }
    let x = x.clone().into_dispatch();
    let found = <Dispatch as Int8BlockOps>::int8_self_attention(x, layers, operands, n_heads, padding);
    Some(Tensor::from_dispatch(found))
}

/// Computes `activation(x · upᵀ + bias) · downᵀ + bias`.
///
/// See [`int8_feed_forward`](briquette_cpu::int8_feed_forward()). Returns `None` if a layer does not have int8
/// codes and quantized activations on the CPU.
///
/// # Panics
/// If the shapes disagree.
pub fn feed_forward(x: &Tensor<3>, layers: [CodedLinear; 2], activation: FeedForwardActivation) -> Option<Tensor<3>> {
    if !layers.iter().all(|layer| takes(x, layer)) {
        return None;
    }
    let found = <Dispatch as Int8BlockOps>::int8_feed_forward(x.clone().into_dispatch(), layers, activation);
    Some(Tensor::from_dispatch(found))
}
