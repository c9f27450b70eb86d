//! GELU, gates, norms, rotary positions and attention, each in one pass over memory on the CPU.

use crate::fused::device::fuses;
use crate::fused::ops::{AttentionHeads, FusedOps};
use briquette_cpu::float::RotaryTable;
use burn::backend::Dispatch;
use burn::tensor::{Bool, DType, Tensor, activation, module};
use std::sync::Arc;

/// GELU: see [`gelu`](briquette_cpu::float::gelu()); burn's own where nothing is fused.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !fuses(&x) {
        return activation::gelu(x);
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_gelu(x.into_dispatch()))
}

/// The layer norm of `x + shortcut`: see [`add_norm`](briquette_cpu::float::add_norm()); burn's own where nothing is fused.
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
    if !fuses(&x) || x.dims() != shortcut.dims() || gamma.dtype() != DType::F32 {
        return module::layer_norm(x + shortcut, gamma, beta, epsilon);
    }
    let beta = beta.unwrap_or_else(|| gamma.zeros_like());
    let [x, shortcut] = [x, shortcut].map(Tensor::into_dispatch);
    let [gamma, beta] = [gamma, beta].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_add_norm(x, shortcut, gamma, beta, epsilon))
}

/// The RMS norm of `x` in f32: see [`rms_norm`](briquette_cpu::float::rms_norm()).
///
/// # Panics
/// If `gamma` is not as long as a row, or [`fuses`] says no of either.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rms_norm(x.into_dispatch(), gamma.into_dispatch(), epsilon))
}

/// `silu(gate) * up`: see [`swiglu`](briquette_cpu::float::swiglu()); burn's own operations where nothing is fused.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    if !fuses(&gate) || up.dtype() != DType::F32 {
        return activation::silu(gate) * up;
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// The heads of `[batch, tokens, heads * width]`, turned by the positions of their tokens: see [`rotate`](briquette_cpu::float::rotate()).
///
/// # Panics
/// If the heads are not as wide as the turns are for, or [`fuses`] says no.
pub fn rotate(x: Tensor<3>, n_heads: usize, turns: Arc<RotaryTable>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rotate(x.into_dispatch(), n_heads, turns))
}

/// Attention of queries, keys and values `[batch, length, heads * width]`, of which the latter two may have fewer heads: see
/// [`attention`](briquette_cpu::float::attention()). Tokens that are `padding` are not seen; without it, a query sees the tokens up to its own.
///
/// # Panics
/// If the shapes disagree, or [`fuses`] says no.
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
