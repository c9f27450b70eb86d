//! Attention over heads, shared by encoders and decoders.

use briquette_kernels::ops;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Tensor};

/// `[batch, length, heads * width]` from and to `[batch, heads, length, width]`.
pub(crate) struct Heads;

impl Heads {
    pub(crate) fn split(x: Tensor<3>, n_heads: usize) -> Tensor<4> {
        let [batch, length, width] = x.dims();
        x.reshape([batch, length, n_heads, width / n_heads]).swap_dims(1, 2)
    }

    pub(crate) fn merge(x: Tensor<4>) -> Tensor<3> {
        let [batch, n_heads, length, width] = x.dims();
        x.swap_dims(1, 2).reshape([batch, length, n_heads * width])
    }

    /// Lets each group of query heads use one head of keys or values: `[b, kv, l, w]` to `[b, kv * times, l, w]`.
    pub(crate) fn repeat(x: Tensor<4>, times: usize) -> Tensor<4> {
        let [batch, n_heads, length, width] = x.dims();
        let x = x.unsqueeze_dim::<5>(2).expand([batch, n_heads, times, length, width]);
        x.reshape([batch, n_heads * times, length, width])
    }
}

/// `softmax(q k^T / sqrt(width)) v`, merged back to `[batch, length, heads * width]`.
///
/// With `padding` (true where there is no token) every query sees all tokens that are there; without it, each query
/// sees the tokens up to its own.
pub(crate) fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let [batch, n_heads, length, _] = q.dims();
    let options = AttentionModuleOptions { is_causal: padding.is_none(), ..AttentionModuleOptions::default() };
    let mask = padding.map(|padding| padding.reshape([batch, 1, 1, length]).expand([batch, n_heads, length, length]));
    Heads::merge(attention(q, k, v, mask, None, options))
}

/// Attention of every token to all that are no padding: `[batch, length, heads * width]`, queries, keys and values alike.
pub(crate) fn attend_to_tokens([q, k, v]: [Tensor<3>; 3], n_heads: usize, padding: Tensor<2, Bool>) -> Tensor<3> {
    if ops::fuses(&q) {
        return ops::attention(q, k, v, n_heads, padding);
    }
    let [q, k, v] = [q, k, v].map(|x| Heads::split(x, n_heads));
    attend(q, k, v, Some(padding))
}
