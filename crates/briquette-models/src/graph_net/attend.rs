//! Attention of a graph: with or without a mask, grouped heads, rotary positions, windows and cached keys.

use super::steps::AttentionCall;
use crate::attention::{
    attend_by_rows, attend_causally, attend_to_kept, attend_to_source, attend_to_tokens, merge_heads, runs_by_rows,
    split_heads,
};
use crate::cache::KeyValues;
use crate::layers::Dropout;
use crate::rope::Rotation;
use briquette_cpu::float::ScoreRule;
use briquette_graph::op::{Attention, Rotary};
use briquette_ops::fused::{self, ScoreRows};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Tensor};

/// The tokens of a run, for attention.
#[derive(Default)]
pub(super) struct RunTokens<'a> {
    /// True at padding tokens `[batch, length]`; of an encoder-decoder, at those of the source.
    pub(super) padding: Option<Tensor<2, Bool>>,
    /// The position of each token; the same for every sequence unless keys and values are cached.
    pub(super) positions: Vec<usize>,
    /// Keys and values of earlier tokens, one cache for each sequence.
    pub(super) caches: Option<&'a mut [KeyValues]>,
    /// Probabilities and values of each attention so far, if the caller wants them.
    pub(super) taps: Option<Vec<AttentionTap>>,
    /// The angles of each rotary setting so far.
    rotations: Vec<(Rotary, usize, Rotation)>,
}

/// The intermediate results of an attention layer.
pub(super) struct AttentionTap {
    /// Probabilities before dropout, `[batch, heads, length, length]`.
    pub(super) probabilities: Tensor<4>,
    /// Values, `[batch, length, key-value heads · width]`.
    pub(super) values: Tensor<3>,
}

impl RunTokens<'_> {
    pub(super) fn new(padding: Option<Tensor<2, Bool>>, positions: Vec<usize>) -> Self {
        Self { padding, positions, ..Self::default() }
    }

    /// Rotates `[batch, length, heads · width]`, or only the first elements of each head.
    fn rotated(&mut self, x: Tensor<3>, rotary: &Rotary, [heads, width]: [usize; 2]) -> Tensor<3> {
        let Some(part) = rotary.width.filter(|part| *part < width) else {
            return self.rotated_wholly(x, rotary, [heads, width]);
        };
        let [batch, length, all] = x.dims();
        let by_head = x.reshape([batch, length, heads, width]);
        let (turned, rest) = (by_head.clone().narrow(3, 0, part), by_head.narrow(3, part, width - part));
        let turned = self.rotated_wholly(turned.reshape([batch, length, heads * part]), rotary, [heads, part]);
        Tensor::cat(vec![turned.reshape([batch, length, heads, part]), rest], 3).reshape([batch, length, all])
    }

    fn rotated_wholly(&mut self, x: Tensor<3>, rotary: &Rotary, [heads, width]: [usize; 2]) -> Tensor<3> {
        let known = self.rotations.iter().position(|(known, of, _)| known == rotary && *of == width);
        let at = known.unwrap_or_else(|| {
            let n_tokens = self.positions.iter().max().map_or(0, |last| last + 1);
            let frequencies = rotary.inverse_frequencies(width, n_tokens);
            let rotation = Rotation::new(&frequencies, self.positions.iter().copied());
            self.rotations.push((rotary.clone(), width, rotation));
            self.rotations.len() - 1
        });
        let turned = self.rotations[at].2.apply(x, heads);
        match rotary.amplitude() {
            1.0 => turned,
            amplitude => turned * amplitude,
        }
    }
}

/// Computes attention of queries, keys and values `[batch, length, heads · width]`, with a bias of the scores.
pub(super) fn attend(
    [q, k, v]: [Tensor<3>; 3],
    bias: Option<Tensor<4>>,
    call: &AttentionCall,
    tokens: &mut RunTokens,
    dropout: &Dropout,
) -> Tensor<3> {
    let settings = &call.settings;
    let (heads, kv_heads) = (settings.heads, settings.kv_heads);
    let (q, k) = match &settings.rotary {
        None => (q, k),
        Some(rotary) => {
            let q = tokens.rotated(q, rotary, [heads, call.width]);
            (q, tokens.rotated(k, rotary, [kv_heads, call.width]))
        }
    };
    let q = if tokens.caches.is_some() { scaled_for_cache(q, call) } else { q };
    if let Some(caches) = tokens.caches.as_deref_mut() {
        if settings.cross {
            return attend_to_source(q, heads, call.place, caches);
        }
        let rule = ScoreRule { window: settings.window, soft_cap: settings.soft_cap.map(|cap| cap as f32) };
        return attend_to_kept([q, k, v], bias, [heads, kv_heads], rule, call.place, caches);
    }
    if let Some(taps) = &mut tokens.taps {
        let probabilities = probabilities([q, k], bias, call, tokens.padding.clone());
        taps.push(AttentionTap { probabilities: probabilities.clone(), values: v.clone() });
        return weighted_sum(probabilities, v, call, dropout);
    }
    let length = q.dims()[1];
    let holds = holds_scores(settings, call.width, bias.is_some(), length);
    if bias.is_none() && (runs_by_rows(&q, heads, k.dims()[1]) || (holds && fused::on_gpu(&q))) {
        return attend_on_gpu([q, k, v], call, tokens.padding.clone());
    }
    if holds {
        return weighted_sum(probabilities([q, k], bias, call, tokens.padding.clone()), v, call, dropout);
    }
    if settings.causal {
        return attend_causally([q, k, v], heads, kv_heads);
    }
    let padding = tokens.padding.clone().unwrap_or_else(|| no_padding(&q));
    attend_to_tokens([q, k, v], heads, padding, dropout)
}

/// Computes attention without a bias, under every other mask of the settings.
fn attend_on_gpu([q, k, v]: [Tensor<3>; 3], call: &AttentionCall, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
    let settings = &call.settings;
    let rows = ScoreRows {
        scale: settings.scale.unwrap_or_else(|| 1.0 / (call.width as f64).sqrt()) as f32,
        rule: ScoreRule { window: settings.window, soft_cap: settings.soft_cap.map(|cap| cap as f32) },
        is_causal: settings.causal,
        first: 0,
        length: q.dims()[1],
    };
    let hidden = padding.filter(|_| !settings.causal);
    attend_by_rows(q, [settings.heads, settings.kv_heads], [k, v], hidden, rows)
}

/// Returns whether all scores of an attention are in memory. Kernels compute usual scores in tiles.
pub(super) fn holds_scores(settings: &Attention, width: usize, has_bias: bool, length: usize) -> bool {
    let is_windowed = settings.window.is_some_and(|window| window < length);
    let is_grouped = !settings.causal && settings.heads != settings.kv_heads;
    has_bias || is_windowed || is_grouped || settings.cross || !has_usual_scores(settings, width)
}

/// Returns whether scores are `q kᵀ / √width`, which all kernels compute.
fn has_usual_scores(settings: &Attention, width: usize) -> bool {
    let usual = 1.0 / (width as f64).sqrt();
    settings.soft_cap.is_none() && settings.scale.is_none_or(|scale| (scale - usual).abs() <= 1e-12)
}

/// Scales queries so that kernels, which divide by `√width`, compute the scores of these settings.
fn scaled_for_cache(q: Tensor<3>, call: &AttentionCall) -> Tensor<3> {
    match call.settings.scale {
        Some(scale) if (scale * (call.width as f64).sqrt() - 1.0).abs() > 1e-12 => {
            q * (scale * (call.width as f64).sqrt())
        }
        _ => q,
    }
}

/// Returns a mask without padding for `[batch, length, width]`.
pub(super) fn no_padding(x: &Tensor<3>) -> Tensor<2, Bool> {
    let [batch, length, _] = x.dims();
    Tensor::<2>::zeros([batch, length], &x.device()).greater_elem(0.5)
}

/// Computes `dropout(probabilities) · v`, `[batch, length, heads · width]`.
fn weighted_sum(probabilities: Tensor<4>, v: Tensor<3>, call: &AttentionCall, dropout: &Dropout) -> Tensor<3> {
    let (heads, kv_heads) = (call.settings.heads, call.settings.kv_heads);
    merge_heads(dropout.forward(probabilities).matmul(repeated(split_heads(v, kv_heads), heads / kv_heads)))
}

/// Computes `softmax(q kᵀ / √width + bias)` with every mask of the settings, `[batch, heads, length, keys]`.
pub(super) fn probabilities(
    [q, k]: [Tensor<3>; 2],
    bias: Option<Tensor<4>>,
    call: &AttentionCall,
    padding: Option<Tensor<2, Bool>>,
) -> Tensor<4> {
    let settings = &call.settings;
    let (heads, kv_heads) = (settings.heads, settings.kv_heads);
    let ([batch, length, _], device) = (q.dims(), q.device());
    let n_keys = k.dims()[1];
    let (q, k) = (split_heads(q, heads), repeated(split_heads(k, kv_heads), heads / kv_heads));
    let scores = q.matmul(k.transpose());
    let mut scores = match settings.scale {
        Some(scale) => scores * scale,
        None => scores / (call.width as f32).sqrt(),
    };
    if let Some(cap) = settings.soft_cap {
        scores = burn::tensor::activation::tanh(scores / cap) * cap;
    }
    if let Some(bias) = bias {
        // A mask of shifted windows is given for one image.
        let (n, own) = (scores.dims()[0], bias.dims()[0]);
        scores = scores + if own > 1 && own < n { bias.repeat_dim(0, n / own) } else { bias };
    }
    // A padding token may see nothing within its window. A finite score keeps its row free of NaN, which would reach the
    // tokens of later layers through a product with 0.
    let unseen = if scores.dtype() == DType::F16 { -6e4 } else { -1e30 };
    if settings.causal || settings.window.is_some() {
        let hidden = Tensor::<4, Bool>::from_data(hidden_keys(settings, length), &device);
        scores = scores.mask_fill(hidden.expand([batch, heads, length, length]), unseen);
    }
    if let Some(padding) = padding.filter(|_| !settings.causal) {
        let padding = padding.reshape([batch, 1, 1, n_keys]).expand([batch, heads, length, n_keys]);
        scores = scores.mask_fill(padding, unseen);
    }
    softmax(scores, 3)
}

/// Returns `[1, 1, length, length]`, true where a query must not see a key.
///
/// A window of `w` tokens is a token and the `w - 1` before it; without causality, as many after it too.
fn hidden_keys(settings: &Attention, length: usize) -> burn::tensor::TensorData {
    let is_hidden = |query: usize, key: usize| {
        let is_later = settings.causal && key > query;
        is_later || settings.window.is_some_and(|window| query.abs_diff(key) >= window)
    };
    let hidden: Vec<bool> = (0..length * length).map(|at| is_hidden(at / length, at % length)).collect();
    burn::tensor::TensorData::new(hidden, [1, 1, length, length])
}

/// Repeats key or value heads: `[b, kv, l, w]` to `[b, kv · times, l, w]`.
fn repeated(x: Tensor<4>, times: usize) -> Tensor<4> {
    if times == 1 { x } else { crate::attention::repeat_heads(x, times) }
}
