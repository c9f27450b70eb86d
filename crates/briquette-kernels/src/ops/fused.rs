//! GELU, gates, norms, rotary positions and attention, each in one pass over memory on the CPU.

use super::device::is_cpu;
use briquette_core::float::Turns;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, DType, Device, Tensor, activation, module};
use std::sync::Arc;

/// As many as fit into the L2 cache of a thread: a row of a small transformer takes a few KiB at its widest.
const ROWS_PER_THREAD: usize = 512;

/// The parameters of a layer norm.
#[derive(Debug, Clone)]
pub struct Norm {
    /// What each column is multiplied by.
    pub gamma: Vec<f32>,
    /// What is added to each column.
    pub beta: Vec<f32>,
    /// Added to the variance, so that nothing is divided by zero.
    pub epsilon: f64,
}

/// How attention is split into heads, and which tokens it ignores.
#[derive(Debug, Clone)]
pub struct AttentionHeads {
    /// How many heads there are.
    pub n: usize,
    /// `[batch, length]`, or empty where nothing is padding.
    pub padding: Vec<bool>,
    /// Whether a query sees no token after its own.
    pub is_causal: bool,
}

impl AttentionHeads {
    /// `n` heads, which do not see what is `padding`; without it, a query sees the tokens up to its own.
    pub fn new(n: usize, padding: Option<Tensor<2, Bool>>) -> Self {
        let is_causal = padding.is_none();
        let mut padding: Vec<bool> = padding.map_or_else(Vec::new, |padding| padding.into_data().iter().collect());
        if !padding.contains(&true) {
            padding.clear();
        }
        Self { n, padding, is_causal }
    }
}

/// Operations that a backend does in one pass over memory.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub trait FusedOps: Backend {
    /// `x * Phi(x)`.
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The layer norm of `x + shortcut` over the last dimension.
    fn fused_add_norm(x: FloatTensor<Self>, shortcut: FloatTensor<Self>, norm: Norm) -> FloatTensor<Self>;

    /// `x / sqrt(mean(x²) + epsilon) * gamma` over the last dimension.
    fn fused_rms_norm(x: FloatTensor<Self>, gamma: Vec<f32>, epsilon: f64) -> FloatTensor<Self>;

    /// `x · weightsᵀ` over the last dimension.
    fn fused_product(x: FloatTensor<Self>, weights: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `silu(gate) * up`.
    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The heads of tokens, each turned by its position.
    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<Turns>) -> FloatTensor<Self>;

    /// Attention of `[batch, length, heads * width]`; keys and values may have fewer heads.
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self>;
}

/// Whether there are fused operations for this tensor.
pub fn fuses<const D: usize>(x: &Tensor<D>) -> bool {
    is_cpu(&x.device()) && x.dtype() == DType::F32
}

/// Rows of activations that are best taken through a network at once on this device, where that is known: as many as
/// stay in the L2 caches of the threads that share them.
pub fn rows_at_once(device: &Device) -> Option<usize> {
    is_cpu(device).then(|| ROWS_PER_THREAD * rayon::current_num_threads())
}

/// GELU: see [`gelu`](briquette_core::float::gelu); burn's own where nothing is fused.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !fuses(&x) {
        return activation::gelu(x);
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_gelu(x.into_dispatch()))
}

/// The layer norm of `x + shortcut`: see [`add_norm`](briquette_core::float::add_norm); burn's own where nothing is fused.
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
    let gamma = floats(gamma);
    let beta = beta.map_or_else(|| vec![0.0; gamma.len()], floats);
    let [x, shortcut] = [x, shortcut].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_add_norm(x, shortcut, Norm { gamma, beta, epsilon }))
}

/// The RMS norm of `x` in f32: see [`rms_norm`](briquette_core::float::rms_norm).
///
/// # Panics
/// If `gamma` is not as long as a row, or [`fuses`] says no.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rms_norm(x.into_dispatch(), floats(gamma), epsilon))
}

/// `x · weightsᵀ` of weights `[n_out, n_in]`: see [`float_product`](crate::float_product()); burn's own where nothing is fused.
pub fn product(x: Tensor<3>, weights: Tensor<2>) -> Tensor<3> {
    if !fuses(&x) || !fuses(&weights) {
        return x.matmul(weights.transpose().unsqueeze());
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_product(x.into_dispatch(), weights.into_dispatch()))
}

/// `silu(gate) * up`: see [`swiglu`](briquette_core::float::swiglu); burn's own operations where nothing is fused.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    if !fuses(&gate) || up.dtype() != DType::F32 {
        return activation::silu(gate) * up;
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// The heads of `[batch, tokens, heads * width]`, turned by the positions of their tokens: see [`rotate`](briquette_core::float::rotate).
///
/// # Panics
/// If the heads are not as wide as the turns are for, or [`fuses`] says no.
pub fn rotate(x: Tensor<3>, n_heads: usize, turns: Arc<Turns>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_rotate(x.into_dispatch(), n_heads, turns))
}

/// Attention of queries, keys and values `[batch, length, heads * width]`, of which the latter two may have fewer heads: see
/// [`attention`](briquette_core::float::attention). Tokens that are `padding` are not seen; without it, a query sees the tokens up to its own.
///
/// # Panics
/// If the shapes disagree, or [`fuses`] says no.
pub fn attention([q, k, v]: [Tensor<3>; 3], n_heads: usize, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let heads = AttentionHeads::new(n_heads, padding);
    let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_attention(q, k, v, heads))
}

fn floats(vector: Tensor<1>) -> Vec<f32> {
    vector.into_data().iter::<f32>().collect()
}
