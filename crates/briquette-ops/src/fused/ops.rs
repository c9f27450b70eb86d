//! What a backend does in one pass over memory; all tensors are f32.

use briquette_cpu::float::RotaryTable;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use std::sync::Arc;

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
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait FusedOps: Backend {
    /// `x * Phi(x)`.
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The layer norm of `x` over the last dimension.
    fn fused_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// The layer norm of `x + shortcut` over the last dimension.
    fn fused_add_norm(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// `x / sqrt(mean(x²) + epsilon) * gamma` over the last dimension.
    fn fused_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self>;

    /// `silu(gate) * up`.
    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The heads of tokens, each turned by its position.
    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<RotaryTable>) -> FloatTensor<Self>;

    /// Attention of `[batch, length, heads * width]`; keys and values may have fewer heads.
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self>;
}

/// The gradients of [`FusedOps`]: of each input, by the inputs and the gradient of the output.
pub trait FusedGrads: Backend {
    /// That of GELU.
    fn gelu_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Those of `x`, `gamma` and `beta`.
    fn norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];

    /// Those of `x` and `gamma`.
    fn rms_norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Those of `gate` and `up`.
    fn swiglu_grads(gate: FloatTensor<Self>, up: FloatTensor<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 2];

    /// Those of queries, keys and values.
    fn attention_grads(
        qkv: [FloatTensor<Self>; 3],
        heads: &AttentionHeads,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];
}
