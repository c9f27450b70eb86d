//! GELU, gates, norms, rotary positions and attention, each in one pass over memory on the CPU.

use crate::fused::device::fuses;
use crate::fused::gpu::norms;
use crate::fused::ops::{AttentionHeads, FusedOps, RowNorm};
use crate::fused::rows;
use briquette_cpu::float::{ActivationFunction, RotaryTable};
use burn::backend::Dispatch;
use burn::tensor::{Bool, DType, Tensor, activation, module};
use std::sync::Arc;

/// Computes GELU: see [`gelu`](briquette_cpu::float::gelu()). Uses burn's own if there is no fused version.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !fuses(&x) {
        return activation::gelu(x);
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_gelu(x.into_dispatch()))
}

/// Computes an activation function: see [`activate`](briquette_cpu::float::activate()).
///
/// Uses burn's own operations if there is no fused version.
pub fn activate<const D: usize>(x: Tensor<D>, function: ActivationFunction) -> Tensor<D> {
    if fuses(&x) {
        return Tensor::from_dispatch(<Dispatch as FusedOps>::fused_activation(x.into_dispatch(), function));
    }
    match function {
        ActivationFunction::Sigmoid => activation::sigmoid(x),
        ActivationFunction::Silu => activation::silu(x),
        ActivationFunction::Tanh => activation::tanh(x),
        ActivationFunction::GeluTanh => activation::gelu_approximate(x),
        ActivationFunction::QuickGelu => x.clone() * activation::sigmoid(x * 1.702),
        ActivationFunction::Relu => activation::relu(x),
        ActivationFunction::Relu6 => x.clamp(0.0, 6.0),
        ActivationFunction::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        ActivationFunction::HardSwish => activation::hard_swish(x),
    }
}

/// Computes `max(x, 0)`: see [`activate`]. With autodiff, this is burn's own, which keeps the output for the gradient instead of the input.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.device().is_autodiff() { activation::relu(x) } else { activate(x, ActivationFunction::Relu) }
}

/// Computes the layer norm of `x + shortcut`: see [`add_norm`](briquette_cpu::float::add_norm()).
///
/// Uses burn's own operations if there is no fused version.
///
/// # Panics
/// If the shapes disagree.
pub fn add_norm<const D: usize>(
    x: Tensor<D>,
    shortcut: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    if norms(&x) && x.dims() == shortcut.dims() && x.dtype() == shortcut.dtype() {
        return rows::norm(x, Some(shortcut), gamma, beta, RowNorm { centers: true, epsilon, ..RowNorm::default() });
    }
    if !fuses(&x) || x.dims() != shortcut.dims() || gamma.dtype() != DType::F32 {
        return layer_norm(x + shortcut, gamma, beta, epsilon);
    }
    let beta = beta.unwrap_or_else(|| gamma.zeros_like());
    let [x, shortcut] = [x, shortcut].map(Tensor::into_dispatch);
    let [gamma, beta] = [gamma, beta].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_add_norm(x, shortcut, gamma, beta, epsilon))
}

/// Computes the layer norm of `x`, with sums in f32.
///
/// Uses burn's own operations if there is no fused version.
pub fn layer_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    if norms(&x) {
        return rows::norm(x, None, gamma, beta, RowNorm { centers: true, epsilon, ..RowNorm::default() });
    }
    let dtype = x.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return module::layer_norm(x, gamma, beta, epsilon);
    }
    let wide = |tensor: Tensor<1>| tensor.cast(DType::F32);
    module::layer_norm(x.cast(DType::F32), wide(gamma), beta.map(wide), epsilon).cast(dtype)
}

/// Computes the RMS norm of `x` in f32: see [`rms_norm`](briquette_cpu::float::rms_norm()).
///
/// Uses burn's own operations if there is no fused version.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    if norms(&x) {
        return rows::norm(x, None, gamma, None, RowNorm { epsilon, ..RowNorm::default() });
    }
    if !fuses(&x) || gamma.dtype() != DType::F32 {
        let dtype = x.dtype();
        let size = (x.clone().cast(DType::F32).square().mean_dim(D - 1) + epsilon).sqrt();
        return x / size.cast(dtype) * gamma.unsqueeze();
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rms_norm(x.into_dispatch(), gamma.into_dispatch(), epsilon))
}

/// Computes `silu(gate) * up`: see [`swiglu`](briquette_cpu::float::swiglu()).
///
/// Uses burn's own operations if there is no fused version.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    if !fuses(&gate) || up.dtype() != DType::F32 {
        return activation::silu(gate) * up;
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// Rotates the heads of `[batch, tokens, heads * width]` by the positions of their tokens.
///
/// See [`rotate`](briquette_cpu::float::rotate()).
///
/// # Panics
/// If the heads do not have the width of the table, or [`fuses`] returns false.
pub fn rotate(x: Tensor<3>, n_heads: usize, turns: Arc<RotaryTable>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rotate(x.into_dispatch(), n_heads, turns))
}

/// Computes attention of queries, keys and values `[batch, length, heads * width]`.
///
/// Keys and values may have fewer heads. Tokens with `padding` are masked; without it, the mask is causal. See
/// [`attention`](briquette_cpu::float::attention()).
///
/// # Panics
/// If the shapes disagree, or [`fuses`] returns false.
pub fn attention([q, k, v]: [Tensor<3>; 3], n_heads: usize, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let is_causal = padding.is_none();
    let mut padding: Vec<bool> = padding.map_or_else(Vec::new, |padding| padding.into_data().iter().collect());
    if !padding.contains(&true) {
        padding.clear();
    }
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    let heads = AttentionHeads { n: n_heads, padding, is_causal };
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_attention(q, k, v, heads))
}
