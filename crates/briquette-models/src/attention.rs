//! Multi-head attention of encoders and decoders.

use crate::cache::{DeviceRows, Kept, KeyValues};
use crate::layers::Dropout;
use briquette_cpu::float::{CachedRows, ScoreRule, biased_cached_attention, cached_attention};
use briquette_ops::fused::{self, KeptHeads, ScoreRows};
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
    let [_, length, width] = q.dims();
    if runs_by_rows(&q, n_heads, length) {
        let scale = 1.0 / ((width / n_heads) as f32).sqrt();
        let rows = ScoreRows { scale, rule: ScoreRule::default(), is_causal: true, first: 0, length };
        return attend_by_rows(q, [n_heads, n_kv_heads], [k, v], None, rows);
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
    if let Some(kept) = on_device(&q, layer, caches) {
        return attend_to_rows(q, n_heads, kept, bias, Some(rule));
    }
    let (q, each) = (to_host(q), length * width);
    let bias = bias.map(to_host);
    let mut out = vec![0.0; q.len()];
    for ((q, out), cache) in q.chunks(each).zip(out.chunks_mut(each)).zip(caches) {
        biased_cached_attention(q, n_heads, on_host(&cache.layers[layer]), (rule, bias.as_deref()), out);
    }
    Tensor::from_data(TensorData::new(out, [batch, length, width]), (&device, dtype))
}

/// Returns the keys and values of a layer and each sequence, if they and the queries are on a GPU.
fn on_device(q: &Tensor<3>, layer: usize, caches: &[KeyValues]) -> Option<Vec<[DeviceRows; 2]>> {
    if !fused::on_gpu(q) {
        return None;
    }
    let both = |cache: &KeyValues| match &cache.layers[layer] {
        [Kept::Device(keys), Kept::Device(values)] => Some([keys.clone(), values.clone()].map(|kept| *kept)),
        _ => None,
    };
    caches.iter().map(both).collect()
}

fn on_host(kept: &[Kept; 2]) -> [&CachedRows; 2] {
    kept.each_ref().map(|kept| match kept {
        Kept::Host(rows) => rows,
        Kept::Device(_) => panic!("keys and values are on a device, where their queries are not"),
    })
}

/// Computes attention of each sequence to its own keys and values on the device; without a rule, each query sees all keys.
fn attend_to_rows(
    q: Tensor<3>,
    n_heads: usize,
    kept: Vec<[DeviceRows; 2]>,
    bias: Option<Tensor<4>>,
    rule: Option<ScoreRule>,
) -> Tensor<3> {
    let ([_, length, width], is_one) = (q.dims(), kept.len() == 1);
    let attend = |(at, kept): (usize, [DeviceRows; 2])| {
        let [n_kv_heads, n_keys] = [kept[0].n_heads, kept[0].n_tokens];
        let rows = ScoreRows {
            scale: 1.0 / ((width / n_heads) as f32).sqrt(),
            rule: rule.unwrap_or_default(),
            is_causal: rule.is_some(),
            first: n_keys.saturating_sub(length),
            length,
        };
        let q = if is_one { q.clone() } else { q.clone().narrow(0, at, 1) };
        if bias.is_none() && fused::attends(&q, width / n_heads) {
            let heads = KeptHeads { n: n_heads, kept: n_kv_heads, n_keys };
            return fused::attend(q, kept.map(DeviceRows::with_room), None, rows, heads);
        }
        attend_by_scores(q, n_heads, kept.map(DeviceRows::tokens), bias.clone(), None, rows)
    };
    let mut attended: Vec<Tensor<3>> = kept.into_iter().enumerate().map(attend).collect();
    if is_one { attended.remove(0) } else { Tensor::cat(attended, 0) }
}

/// Returns whether [`attend_by_rows`] supports these queries: they are on a GPU, which has a kernel for heads of this width, or
/// memory for all scores.
pub(crate) fn runs_by_rows(q: &Tensor<3>, n_heads: usize, n_keys: usize) -> bool {
    let [batch, length, width] = q.dims();
    let has_few_scores = batch * n_heads * length * n_keys <= MOST_SCORES;
    fused::attends(q, width / n_heads) || (fused::on_gpu(q) && has_few_scores)
}

/// The most scores in the memory of a device: 512 MiB. A kernel that holds only a tile of them takes longer.
const MOST_SCORES: usize = 1 << 27;

/// Computes attention of `[batch, length, heads · width]` on a GPU. No query sees keys where `hidden` `[batch, keys]` is true.
pub(crate) fn attend_by_rows(
    q: Tensor<3>,
    [n_heads, n_kv_heads]: [usize; 2],
    kept: [Tensor<3>; 2],
    hidden: Option<Tensor<2, Bool>>,
    rows: ScoreRows,
) -> Tensor<3> {
    if fused::attends(&q, q.dims()[2] / n_heads) {
        let heads = KeptHeads { n: n_heads, kept: n_kv_heads, n_keys: kept[0].dims()[1] };
        return fused::attend(q, kept, hidden, rows, heads);
    }
    attend_by_scores(q, n_heads, kept.map(|x| split_heads(x, n_kv_heads)), None, hidden, rows)
}

/// Like [`attend_by_rows`], with all scores in memory, a bias that is added to them, and keys and values
/// `[batch, heads, keys, width]`.
fn attend_by_scores(
    q: Tensor<3>,
    n_heads: usize,
    [keys, values]: [Tensor<4>; 2],
    bias: Option<Tensor<4>>,
    hidden: Option<Tensor<2, Bool>>,
    rows: ScoreRows,
) -> Tensor<3> {
    let (dtype, [batch, length, _]) = (q.dtype(), q.dims());
    let [_, n_kv_heads, n_keys, width] = keys.dims();
    // Queries of the heads that share a key are rows of one product.
    let grouped = n_heads / n_kv_heads * length;
    let q = split_heads(q, n_heads).reshape([batch, n_kv_heads, grouped, width]);
    let mut scores = q.matmul(keys.cast(dtype).transpose());
    let mut of = rows;
    if let Some(bias) = bias {
        debug_assert!(rows.rule.soft_cap.is_none(), "a cap applies before the bias");
        scores = scores * rows.scale + bias.reshape([1, n_kv_heads, grouped, n_keys]);
        of.scale = 1.0;
    }
    let weighted = fused::softmax(scores, hidden, of).matmul(values.cast(dtype));
    merge_heads(weighted.reshape([batch, n_heads, length, width]))
}

/// Appends keys and values of a layer to the caches, one cache for each sequence.
pub(crate) fn keep(keys_and_values: [Tensor<3>; 2], layer: usize, caches: &mut [KeyValues]) {
    for (kept, x) in keys_and_values.into_iter().enumerate() {
        let mut rows = None;
        let batch = x.dims()[0];
        for (at, cache) in caches.iter_mut().enumerate() {
            match &mut cache.layers[layer][kept] {
                Kept::Device(kept) => kept.push(split_heads(x.clone().narrow(0, at, 1), kept.n_heads)),
                Kept::Host(kept) => {
                    let rows = rows.get_or_insert_with(|| to_host(x.clone()));
                    let each = rows.len() / batch;
                    kept.push(&rows[at * each..(at + 1) * each]);
                }
            }
        }
    }
}

/// Computes attention of `[batch, length, heads * width]` to cached keys and values of the encoder, all of which each
/// query sees.
pub(crate) fn attend_to_source(q: Tensor<3>, n_heads: usize, layer: usize, caches: &[KeyValues]) -> Tensor<3> {
    if let Some(kept) = on_device(&q, layer, caches) {
        return attend_to_rows(q, n_heads, kept, None, None);
    }
    let (device, dtype, [batch, length, width]) = (q.device(), q.dtype(), q.dims());
    let q = to_host(q);
    let mut out = vec![0.0; q.len()];
    for (at, (q, out)) in q.chunks(width).zip(out.chunks_mut(width)).enumerate() {
        cached_attention(q, n_heads, on_host(&caches[at / length].layers[layer]), ScoreRule::default(), out);
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
