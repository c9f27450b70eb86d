//! The fused operations of a backend. All tensors are f32.

use briquette_cpu::float::{ActivationFunction, RotaryTable, ScoreRule};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use std::sync::Arc;

/// The heads and the mask of attention.
#[derive(Debug, Clone)]
pub struct AttentionHeads {
    /// Number of heads.
    pub n: usize,
    /// `[batch, length]`, or empty without padding.
    pub padding: Vec<bool>,
    /// Whether to mask the tokens after each query.
    pub is_causal: bool,
}

/// The steps of a norm over rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowNorm {
    /// Whether a shortcut is added first.
    pub adds: bool,
    /// Whether the mean is subtracted, as in layer norm.
    pub centers: bool,
    /// Whether `beta` is added.
    pub shifts: bool,
    /// Added to the variance.
    pub epsilon: f64,
}

/// The scale and masks of rows of attention scores.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRows {
    /// The factor of all scores.
    pub scale: f32,
    /// The limit of scores and the window.
    pub rule: ScoreRule,
    /// Whether a query sees only itself and earlier keys.
    pub is_causal: bool,
    /// The position of the first query among the keys.
    pub first: usize,
    /// Queries of a head. The query of row `r` is `first + r % length`.
    pub length: usize,
}

/// The heads of an attention to keys and values.
#[derive(Debug, Clone, Copy)]
pub struct KeptHeads {
    /// Heads of queries.
    pub n: usize,
    /// Heads of keys and values.
    pub kept: usize,
    /// Number of keys.
    pub n_keys: usize,
}

/// Operations that a backend computes in one pass over memory.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub trait FusedOps: Backend {
    /// Computes `x * Phi(x)`.
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Computes an activation function of every element.
    fn fused_activation(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self>;

    /// Computes the layer norm of `x` over the last dimension.
    fn fused_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// Computes the layer norm of `x + shortcut` over the last dimension.
    fn fused_add_norm(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// Computes `x / sqrt(mean(x²) + epsilon) * gamma` over the last dimension.
    fn fused_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self>;

    /// Computes `silu(gate) * up`.
    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Rotates the heads of tokens by their positions.
    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<RotaryTable>) -> FloatTensor<Self>;

    /// Computes attention of `[batch, length, heads * width]`; keys and values may have fewer heads.
    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self>;
}

/// The gradients of [`FusedOps`], from the inputs and the gradient of the output.
pub trait FusedGrads: Backend {
    /// Returns the gradient of GELU.
    fn gelu_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradient of an activation function.
    fn activation_grad(x: FloatTensor<Self>, function: ActivationFunction, dy: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns the gradients of `x`, `gamma` and `beta`.
    fn norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];

    /// Returns the gradients of `x` and `gamma`.
    fn rms_norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2];

    /// Returns the gradients of `gate` and `up`.
    fn swiglu_grads(gate: FloatTensor<Self>, up: FloatTensor<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 2];

    /// Returns the gradients of queries, keys and values.
    fn attention_grads(
        qkv: [FloatTensor<Self>; 3],
        heads: &AttentionHeads,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];
}
