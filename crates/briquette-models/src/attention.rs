//! Multi-head attention of encoders and decoders.

use crate::cache::KeyValues;
use crate::layers::Dropout;
use briquette_cpu::float::{ScoreRule, biased_cached_attention, cached_attention};
use briquette_ops::fused;
use burn::tensor::activation::softmax;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Tensor, TensorData};

/// Reshapes `[batch, length, heads * width]` to `[batch, length, heads, width]`.
pub(crate) fn by_head(x: Tensor<3>, n_heads: usize) -> Tensor<4> {
    let [batch, length, width] = x.dims();
    x.reshape([batch, length, n_heads, width / n_heads])
}

/// Reshapes `[batch, length, heads * width]` to `[batch, heads, length, width]`.
pub(crate) fn split_heads(x: Tensor<3>, n_heads: usize) -> Tensor<4> {
    by_head(x, n_heads).swap_dims(1, 2)
}

/// Reshapes `[batch, heads, length, width]` to `[batch, length, heads * width]`.
pub(crate) fn merge_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, n_heads, length, width] = x.dims();
    x.swap_dims(1, 2).reshape([batch, length, n_heads * width])
}

/// Repeats key or value heads for grouped queries: `[b, kv, l, w]` to `[b, kv * times, l, w]`.
pub(crate) fn repeat_heads(x: Tensor<4>, times: usize) -> Tensor<4> {
    let [batch, n_heads, length, width] = x.dims();
    let x = x.unsqueeze_dim::<5>(2).expand([batch, n_heads, times, length, width]);
    x.reshape([batch, n_heads * times, length, width])
}

/// Computes causal attention; all tensors are `[batch, length, heads * width]`. Keys and values may have fewer
/// heads.
pub(crate) fn attend_causally([q, k, v]: [Tensor<3>; 3], n_heads: usize, n_kv_heads: usize) -> Tensor<3> {
    if fused::fuses(&q) {
        return fused::attention([q, k, v], n_heads, None);
    }
    let [q, k, v] = [(q, n_heads), (k, n_kv_heads), (v, n_kv_heads)].map(|(x, n_heads)| split_heads(x, n_heads));
    let times = n_heads / n_kv_heads;
    attend(q, repeat_heads(k, times), repeat_heads(v, times), None)
}

/// Like [`attend_causally`], for tokens that continue the cached sequences; appends their keys and values of
/// this layer to the caches. `rule` limits the scores and the tokens that a query sees; a bias `[1, heads, length, tokens]`
/// is added to them.
pub(crate) fn attend_to_kept(
    [q, k, v]: [Tensor<3>; 3],
    bias: Option<Tensor<4>>,
    [n_heads, n_kv_heads]: [usize; 2],
    rule: ScoreRule,
    layer: usize,
    caches: &mut [KeyValues],
) -> Tensor<3> {
    let (device, dtype, [batch, length, width]) = (q.device(), q.dtype(), q.dims());
    keep([k.clone(), v.clone()], layer, caches);
    let are_first = caches.iter().all(|cache| cache.layers[layer][0].n_tokens() == length);
    if are_first && length > 1 && bias.is_none() && rule == ScoreRule::default() {
        return attend_causally([q, k, v], n_heads, n_kv_heads);
    }
    let (q, each) = (to_host(q), length * width);
    let bias = bias.map(to_host);
    let mut out = vec![0.0; q.len()];
    for ((q, out), cache) in q.chunks(each).zip(out.chunks_mut(each)).zip(caches) {
        let [keys, values] = &cache.layers[layer];
        biased_cached_attention(q, n_heads, [keys, values], (rule, bias.as_deref()), out);
    }
    Tensor::from_data(TensorData::new(out, [batch, length, width]), (&device, dtype))
}

/// Appends keys and values of a layer to the caches, one cache for each sequence.
pub(crate) fn keep(keys_and_values: [Tensor<3>; 2], layer: usize, caches: &mut [KeyValues]) {
    for (kept, x) in keys_and_values.into_iter().enumerate() {
        let batch = x.dims()[0];
        let rows = to_host(x);
        let each = rows.len() / batch;
        rows.chunks(each.max(1)).zip(&mut *caches).for_each(|(rows, cache)| cache.layers[layer][kept].push(rows));
    }
}

/// Computes attention of `[batch, length, heads * width]` to cached keys and values of the encoder, all of which each
/// query sees.
pub(crate) fn attend_to_source(q: Tensor<3>, n_heads: usize, layer: usize, caches: &[KeyValues]) -> Tensor<3> {
    let (device, dtype, [batch, length, width]) = (q.device(), q.dtype(), q.dims());
    let q = to_host(q);
    let mut out = vec![0.0; q.len()];
    for (at, (q, out)) in q.chunks(width).zip(out.chunks_mut(width)).enumerate() {
        let [keys, values] = &caches[at / length].layers[layer];
        cached_attention(q, n_heads, [keys, values], ScoreRule::default(), out);
    }
    Tensor::from_data(TensorData::new(out, [batch, length, width]), (&device, dtype))
}

fn to_host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec_as::<f32>().expect("floats")
}

/// Computes `softmax(q k^T / sqrt(width)) v` and merges the heads to `[batch, length, heads * width]`.
///
/// With `padding` (true at padding tokens), every query attends to all other tokens. Without it, attention is
/// causal.
fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let [batch, n_heads, length, _] = q.dims();
    let options = AttentionModuleOptions { is_causal: padding.is_none(), ..AttentionModuleOptions::default() };
    let mask = padding.map(|padding| padding.reshape([batch, 1, 1, length]).expand([batch, n_heads, length, length]));
    merge_heads(attention(q, k, v, mask, None, options))
}

/// Computes bidirectional attention with padding mask; all tensors are `[batch, length, heads * width]`.
///
/// During training, `dropout` applies to the attention probabilities.
pub(crate) fn attend_to_tokens(
    [q, k, v]: [Tensor<3>; 3],
    n_heads: usize,
    padding: Tensor<2, Bool>,
    dropout: &Dropout,
) -> Tensor<3> {
    let is_dropping = dropout.training.is_enabled() && dropout.prob > 0.0 && q.device().is_autodiff();
    if !is_dropping && fused::fuses(&q) {
        return fused::attention([q, k, v], n_heads, Some(padding));
    }
    let [q, k, v] = [q, k, v].map(|x| split_heads(x, n_heads));
    match is_dropping {
        true => attend_dropping(q, k, v, padding, dropout),
        false => attend(q, k, v, Some(padding)),
    }
}

/// Like [`attend`] with padding, with dropout on the attention probabilities.
fn attend_dropping(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, padding: Tensor<2, Bool>, dropout: &Dropout) -> Tensor<3> {
    let [batch, _, length, width] = q.dims();
    let scores = q.matmul(k.swap_dims(2, 3)).div_scalar((width as f64).sqrt());
    let padding = padding.reshape([batch, 1, 1, length]).expand(scores.dims());
    let weights = softmax(scores.mask_fill(padding, f64::NEG_INFINITY), 3);
    merge_heads(dropout.forward(weights).matmul(v))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::layers::DropoutConfig;
    use burn::tensor::{Device, Distribution, TensorData, Tolerance};

    #[test]
    fn attention_without_dropout_equals_plain_attention() {
        let device = Device::flex().autodiff();
        let x = || Tensor::<3>::random([2, 5, 12], Distribution::Normal(0.0, 1.0), &device);
        let padding = [false, false, false, true, true, false, false, false, false, false];
        let padding = Tensor::<2, Bool>::from_data(TensorData::new(padding.to_vec(), [2, 5]), &device);
        let (never, hardly) = (DropoutConfig::new(0.0).init(), DropoutConfig::new(1e-9).init());
        let all = [x(), x(), x()];
        let [expected, found] =
            [never, hardly].map(|dropout| attend_to_tokens(all.clone(), 3, padding.clone(), &dropout).into_data());
        found.assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
    }
}
