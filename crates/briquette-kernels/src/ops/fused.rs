//! GELU, layer norm and attention, each in one pass over memory on the CPU.

use super::device::is_cpu;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Bool, DType, Device, Tensor, activation, module};

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

/// Operations that a backend does in one pass over memory.
#[backend_extension(Flex: cfg(feature = "flex"))]
pub trait FusedOps: Backend {
    /// `x * Phi(x)`.
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The layer norm of `x + shortcut` over the last dimension.
    fn fused_add_norm(x: FloatTensor<Self>, shortcut: FloatTensor<Self>, norm: Norm) -> FloatTensor<Self>;

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

/// GELU: see [`gelu`](crate::gelu()); burn's own where nothing is fused.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !fuses(&x) {
        return activation::gelu(x);
    }
    Tensor::from_dispatch(<Dispatch as FusedOps>::fused_gelu(x.into_dispatch()))
}

/// The layer norm of `x + shortcut`: see [`add_norm`](crate::add_norm()); burn's own where nothing is fused.
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

/// Attention of queries, keys and values `[batch, length, heads * width]`, of which the latter two may have fewer heads: see
/// [`attention`](crate::attention()). Tokens that are `padding` are not seen; without it, a query sees the tokens up to its own.
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

fn floats(vector: Tensor<1>) -> Vec<f32> {
    vector.into_data().iter::<f32>().collect()
}
