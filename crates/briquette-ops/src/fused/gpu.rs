//! Operations on rows of floats, for tensors on a GPU.

use crate::fused::ops::{KeptHeads, ScoreRows};
use crate::fused::rows;
use burn::tensor::{Bool, Tensor};

/// Returns whether this tensor is on a GPU with kernels for rows, in f32, f16 or bf16, without autodiff.
pub fn on_gpu<const D: usize>(x: &Tensor<D>) -> bool {
    rows::on_gpu(x)
}

/// Returns whether [`layer_norm`](super::layer_norm()) and [`rms_norm`](super::rms_norm()) have a kernel for these rows.
pub(super) fn norms<const D: usize>(x: &Tensor<D>) -> bool {
    rows::on_gpu(x) && x.dims()[D - 1].is_multiple_of(4)
}

/// Computes softmax of scores `[batch, heads, queries, keys]`, with their scale and masks, in f32.
///
/// No query sees the keys where `hidden` `[batch, keys]` is true.
///
/// # Panics
/// If [`on_gpu`] returns false.
pub fn softmax(scores: Tensor<4>, hidden: Option<Tensor<2, Bool>>, of: ScoreRows) -> Tensor<4> {
    rows::softmax(scores, hidden, of)
}

/// Returns whether [`attend`] supports queries of this type and place, with heads of this width.
pub fn attends<const D: usize>(q: &Tensor<D>, width: usize) -> bool {
    rows::attends(q, width)
}

/// Computes attention of queries `[batch, length, heads · width]`; scores are never in memory.
///
/// Keys and values are `[batch, keys, heads · width]`, or `[batch, heads, capacity, width]` with at least
/// [`KeptHeads::n_keys`] keys. No query sees the keys where `hidden` `[batch, keys]` is true.
///
/// # Panics
/// If [`attends`] returns false, or shapes disagree.
pub fn attend<const D: usize>(
    q: Tensor<3>,
    kept: [Tensor<D>; 2],
    hidden: Option<Tensor<2, Bool>>,
    of: ScoreRows,
    heads: KeptHeads,
) -> Tensor<3> {
    rows::attend(q, kept, hidden, of, heads)
}

/// Rotates the heads of `[batch, tokens, heads * width]` by sines and cosines `[positions, width / 2]`.
///
/// There is one position per token, either for all sequences together or for each sequence. See
/// [`rotate`](briquette_cpu::float::rotate()).
///
/// # Panics
/// If the heads do not have the width of the tables, or [`on_gpu`] returns false.
pub fn rotate_by_tables(x: Tensor<3>, tables: [Tensor<2>; 2], n_heads: usize) -> Tensor<3> {
    rows::rotate(x, tables, n_heads)
}
