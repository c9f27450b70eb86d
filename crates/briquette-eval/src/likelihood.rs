//! The likelihood of a text under a decoder.

use crate::batch_budget::{BatchBudget, Pace};
use crate::lanes;
use crate::metrics;
use crate::outputs::{ItemProgress, device_of, to_host};
use crate::run_batch::text_extents;
use crate::samples::BATCH_TOKENS;
use crate::state_file::StateFile;
use crate::stopwatch::Stopwatch;
use briquette_core::{Error, Remedy, Result};
use briquette_cpu::float::log_sum_exp;
use briquette_models::{Decoder, LoadedModel, ModelTask, device_name};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData, activation::log_softmax};

/// The maximum number of logits in memory per concurrent batch: the logits of a whole window may exceed the
/// model's size.
const MAX_SCORES: usize = 1 << 20;

/// The likelihood of a text under a decoder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likelihood {
    /// The sum of negative log likelihoods, in nats.
    pub nll: f64,
    /// The number of predicted tokens.
    pub n_tokens: usize,
    /// The milliseconds of each batch.
    pub batch_ms: Vec<f64>,
    /// The number of windows in the largest batch.
    pub batch_size: usize,
}

/// A piece of text that runs in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextWindow<'a> {
    tokens: &'a [u32],
    /// The number of tokens at the end that are predicted in this window.
    n_scored: usize,
}

/// Returns windows of `max_length` tokens whose starts are `stride` tokens apart.
///
/// A token counts in the first window that contains it. The first token of the text is not predicted, nor is
/// the first token of a window that does not overlap the window before it.
fn windows(tokens: &[u32], max_length: usize, stride: usize) -> Vec<TextWindow<'_>> {
    let (mut found, mut first, mut n_seen) = (Vec::new(), 0, 0);
    while n_seen < tokens.len() {
        let end = tokens.len().min(first + max_length);
        let window = &tokens[first..end];
        let n_scored = (end - n_seen).min(window.len() - 1);
        found.extend((n_scored > 0).then_some(TextWindow { tokens: window, n_scored }));
        (first, n_seen) = (first + stride, end);
    }
    found
}

/// Returns the likelihood of a text, cut into windows of the tokenizer's `max_length`.
///
/// The starts of windows are `stride` tokens apart; by default windows do not overlap. With a smaller stride,
/// every token after the first window has at least `max_length - stride` tokens of context: the perplexity of
/// fixed-length models in transformers' guide. The head inputs are stored in `kept` if given.
///
/// # Errors
/// - Input: the text has fewer than two tokens.
/// - Config: the stride is 0 or longer than a window.
/// - Refused: outputs are not finite.
pub fn likelihood<'a>(
    model: &LoadedModel,
    text: &str,
    stride: Option<usize>,
    mut kept: Option<&mut StateFile>,
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<Likelihood> {
    let tokenizer = model.tokenizer()?;
    let max_length = tokenizer.max_length();
    let stride = stride.unwrap_or(max_length);
    if stride == 0 || stride > max_length {
        let message = format!(
            "found {stride}, expected 1 to {max_length}, the tokens of a window; a larger stride would skip tokens"
        );
        return Err(Error::config(message).at("data.stride").with_remedy(Remedy::SetKey("data.stride")));
    }
    let how: BatchBudget = how.into();
    let mut pace = Pace::new(how);
    pace.check_tokens(|| tokenizer.encoding_bytes(text))?;
    let tokens = tokenizer.encode_all(text)?.ids;
    let windows = windows(&tokens, max_length, stride);
    if windows.is_empty() {
        return Err(Error::input("the text is shorter than two tokens; nothing to predict"));
    }
    let device = device_of(model);
    let mut stopwatch = Stopwatch::on(&device, how.warms_up);
    let (mut found, mut n_done) = (Likelihood::default(), 0);
    // The first and the last window may differ in shape, so they cannot share a batch with the others.
    for same in windows.chunk_by(|a, b| (a.tokens.len(), a.n_scored) == (b.tokens.len(), b.n_scored)) {
        let n_tokens = same.first().map_or(0, |window| window.tokens.len());
        pace.run(
            || model.run_bytes(text_extents(n_tokens)),
            same,
            |group| {
                let keeps = kept.as_ref().is_some_and(|kept| kept.has_room());
                let scored = stopwatch.time(group.len(), || scored(model, group, keeps, &device))?;
                for (nll, states) in scored {
                    found.nll += nll;
                    if let (Some(kept), true) = (&mut kept, keeps) {
                        kept.push(&states, group[0].n_scored)?;
                    }
                }
                found.n_tokens += group.iter().map(|window| window.n_scored).sum::<usize>();
                n_done += group.len();
                progress(n_done, windows.len())
            },
        )?;
    }
    (found.batch_ms, found.batch_size) = (stopwatch.batch_ms, pace.largest);
    if found.nll.is_finite() {
        Ok(found)
    } else {
        Err(Error::refused("outputs are not finite; the weights are damaged"))
    }
}

/// Returns the sum of negative log likelihoods of all tokens of a window except the first.
///
/// # Errors
/// - Config: the model is not a decoder.
/// - Io: the logits cannot be read from the device.
pub fn nll_of(model: &LoadedModel, tokens: &[u32]) -> Result<f64> {
    if model.arch.task() != ModelTask::Decoder {
        return Err(Error::config(format!("found {}, expected a decoder", model.arch)));
    }
    let window = TextWindow { tokens, n_scored: tokens.len().saturating_sub(1) };
    Ok(scored(model, &[window], false, &device_of(model))?.iter().map(|(nll, _)| nll).sum())
}

/// The sum of negative log likelihoods of some equal windows, and the head inputs of each if they are stored.
type WindowScore = (f64, Vec<Vec<f32>>);

fn scored(model: &LoadedModel, windows: &[TextWindow], keeps: bool, device: &Device) -> Result<Vec<WindowScore>> {
    let (length, network) = (windows[0].tokens.len(), &model.network);
    let of_some = |windows: &[TextWindow]| -> Result<WindowScore> {
        let decoder = network.as_decoder();
        let ids: Vec<i32> = windows.iter().flat_map(|window| window.tokens.iter().map(|&id| id as i32)).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [windows.len(), length]), device);
        let n_scored = windows[0].n_scored;
        let states = decoder.last_state(ids.clone()).narrow(1, length - 1 - n_scored, n_scored);
        let kept = if keeps { rows_of(states.clone())? } else { Vec::new() };
        Ok((nll_of_states(decoder, states, ids.narrow(1, length - n_scored, n_scored))?, kept))
    };
    let n_lanes = lanes::n_lanes(device);
    let of_lane = if n_lanes == 1 { windows.len() } else { (BATCH_TOKENS / length.max(1)).clamp(1, windows.len()) };
    let parts: Vec<&[TextWindow]> = windows.chunks(of_lane).collect();
    let mut all = Vec::new();
    for parts in parts.chunks(n_lanes) {
        all.extend(lanes::run(parts.to_vec(), of_some)?);
    }
    Ok(all)
}

/// Reads the states of each window to the host.
pub(crate) fn rows_of(states: Tensor<3>) -> Result<Vec<Vec<f32>>> {
    let [batch, n, width] = states.dims();
    let found = to_host(states.cast(FloatDType::F32).reshape([batch, n * width]))?;
    Ok(metrics::rows(&found.values, n * width).map(<[f32]>::to_vec).collect())
}

/// Returns the sum of negative log likelihoods of `next`, `[batch, tokens]`.
///
/// `states` are the head inputs before each token, `[batch, tokens, width]`.
pub(crate) fn nll_of_states(network: &dyn Decoder, states: Tensor<3>, next: Tensor<2, Int>) -> Result<f64> {
    let mut nll = 0.0;
    each_scores(network, states, |start, scores| {
        let n = scores.dims()[1];
        nll += nll_of_scores(scores, next.clone().narrow(1, start, n))?;
        Ok(())
    })?;
    Ok(nll)
}

/// Returns the same sum from logits `[batch, tokens, vocabulary]`. On the CPU they are read in place.
fn nll_of_scores(scores: Tensor<3>, next: Tensor<2, Int>) -> Result<f64> {
    let ([batch, n, width], scores) = (scores.dims(), scores.cast(FloatDType::F32));
    if device_name(&scores.device()) == "cpu" {
        let scores = to_host(scores.reshape([batch * n, width]))?;
        let rows = metrics::rows(&scores.values, width).zip(next.into_data().iter::<i64>().collect::<Vec<_>>());
        return Ok(rows.map(|(row, next)| log_sum_exp(row) - f64::from(row[next as usize])).sum());
    }
    let each = log_softmax(scores, 2).gather(2, next.unsqueeze_dim::<3>(2));
    Ok(-to_host(each.reshape([batch, n]))?.values.iter().map(|&value| f64::from(value)).sum::<f64>())
}

/// Calls `each` with the first token and the logits `[batch, tokens, vocabulary]` of a few tokens at a time.
pub(crate) fn each_scores(
    network: &dyn Decoder,
    states: Tensor<3>,
    mut each: impl FnMut(usize, Tensor<3>) -> Result<()>,
) -> Result<()> {
    let [batch, length, _] = states.dims();
    let step = (MAX_SCORES / (batch * network.vocab_size()).max(1)).max(1);
    (0..length).step_by(step).try_for_each(|start| {
        let n = step.min(length - start);
        each(start, network.scores(states.clone().narrow(1, start, n)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(n: u32, max_length: usize, stride: usize) -> Vec<(u32, usize, usize)> {
        let tokens: Vec<u32> = (0..n).collect();
        let found = windows(&tokens, max_length, stride);
        found.iter().map(|window| (window.tokens[0], window.tokens.len(), window.n_scored)).collect()
    }

    #[test]
    fn every_token_counts_once_in_the_first_window_that_has_it() {
        // Without overlap, the first token of each window is not predicted.
        assert_eq!(spans(10, 4, 4), [(0, 4, 3), (4, 4, 3), (8, 2, 1)]);
        assert_eq!(spans(9, 4, 4), [(0, 4, 3), (4, 4, 3)]);
        assert_eq!(spans(10, 4, 2), [(0, 4, 3), (2, 4, 2), (4, 4, 2), (6, 4, 2)]);
        assert_eq!(spans(9, 4, 3), [(0, 4, 3), (3, 4, 3), (6, 3, 2)]);
        assert_eq!(spans(3, 4, 1), [(0, 3, 2)]);
        assert_eq!(spans(1, 4, 1), []);
        for (n, max_length, stride) in [(50, 7, 3), (51, 8, 1), (49, 8, 7)] {
            let all: usize = spans(n, max_length, stride).iter().map(|(.., n_scored)| n_scored).sum();
            assert_eq!(all, n as usize - 1, "with overlapping windows, all but the first");
        }
    }
}
