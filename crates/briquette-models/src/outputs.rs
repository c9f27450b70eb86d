//! Running a model over data: one row of outputs for each item, and how long batches took.

use crate::batches::{Batching, image_batches, loader_error, stacked, text_batches};
use crate::data::{Images, Sentences};
use crate::text::{Tokens, padded};
use crate::{Input, LoadedModel, metrics};
use briquette_core::{Error, Result};
use burn::tensor::{Device, Int, Tensor, TensorData, activation::log_softmax};
use std::sync::Arc;
use std::time::Instant;

/// Scores of tokens in memory at once: a vocabulary is large, and a window of its scores would outweigh the model.
const MAX_SCORES: usize = 1 << 24;

/// Told after every batch: items done, and in all. An error stops the run and is what it returns.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize) -> Result<()>;

/// One row of outputs for each item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// Values of a row: classes, or the width of an embedding.
    pub width: usize,
    /// Rows in the order of the data; those of skipped items are missing.
    pub values: Vec<f32>,
    /// Places of the items that have a row, ascending.
    pub places: Vec<usize>,
    /// Milliseconds of each batch, from tokens or pixels on the host to outputs on the host.
    pub batch_ms: Vec<f64>,
    /// Items that could not be read.
    pub n_skipped: usize,
}

impl Outputs {
    fn of_rows(mut rows: Vec<(usize, Vec<f32>)>, batch_ms: Vec<f64>, n_skipped: usize) -> Result<Self> {
        rows.sort_by_key(|(index, _)| *index);
        let broken = rows.iter().filter(|(_, row)| !row.iter().all(|value| value.is_finite())).count();
        if broken > 0 {
            let message = format!("{broken} of {} outputs are not finite; the weights are damaged", rows.len());
            return Err(Error::refused(message));
        }
        let width = rows.first().map_or(0, |(_, row)| row.len());
        let places = rows.iter().map(|(index, _)| *index).collect();
        let values = rows.into_iter().flat_map(|(_, row)| row).collect();
        Ok(Self { width, values, places, batch_ms, n_skipped })
    }
}

/// How likely a decoder found a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likelihood {
    /// The sum of negative log likelihoods, in nats.
    pub nll: f64,
    /// Tokens predicted.
    pub n_tokens: usize,
    /// Milliseconds of each batch.
    pub batch_ms: Vec<f64>,
}

/// The embedding of every sentence.
///
/// # Errors
/// Input where a sentence has no tokens in the vocabulary or the model no tokenizer; Refused where outputs are not
/// finite.
pub fn embed(model: &LoadedModel, sentences: &Sentences, how: Batching, progress: Progress) -> Result<Outputs> {
    let Input::Text { pooling, .. } = &model.input else { return Err(takes_no_text(model)) };
    let device = device_of(model);
    let loader = text_batches(&sentences.texts, model.tokenizer()?, how);
    let (mut rows, mut batch_ms) = (Vec::new(), Vec::new());
    for batch in loader.iter() {
        let batch = batch.map_err(|error| loader_error(&error))?;
        let (places, tokens): (Vec<usize>, Vec<Tokens>) = batch.into_iter().map(|it| (it.index, it.item)).unzip();
        let start = Instant::now();
        let (ids, padding) = padded(&tokens, &device);
        let embedded = to_host(pooling.apply(model.network.encode(ids, padding.clone()), padding))?;
        batch_ms.push(elapsed_ms(start));
        add_rows(&mut rows, &places, &embedded);
        progress(rows.len(), sentences.texts.len())?;
    }
    Outputs::of_rows(rows, batch_ms, 0)
}

/// The class scores of every image that decodes.
///
/// # Errors
/// Input where none decodes, or one does not and `is_strict`; Refused where outputs are not finite.
pub fn classify(
    model: &LoadedModel,
    images: &Arc<Images>,
    input: &crate::data::ImageInput,
    is_strict: bool,
    how: Batching,
    progress: Progress,
) -> Result<Outputs> {
    let device = device_of(model);
    let extents = images.extents(input)?;
    let (mut rows, mut batch_ms, mut n_skipped) = (Vec::new(), Vec::new(), 0);
    for batch in image_batches(images, input, is_strict, how).iter() {
        let batch = batch.map_err(|error| loader_error(&error))?;
        n_skipped += batch.iter().filter(|it| it.item.is_none()).count();
        let read = batch.into_iter().filter_map(|it| Some((it.index, it.item?)));
        let (places, pixels): (Vec<usize>, Vec<Vec<f32>>) = read.unzip();
        if !places.is_empty() {
            let start = Instant::now();
            let scores = to_host(model.network.classify(stacked(&pixels, extents, &device)))?;
            batch_ms.push(elapsed_ms(start));
            add_rows(&mut rows, &places, &scores);
        }
        progress(rows.len() + n_skipped, images.len())?;
    }
    if rows.is_empty() {
        return Err(Error::input("not one image decodes; nothing to evaluate"));
    }
    Outputs::of_rows(rows, batch_ms, n_skipped)
}

/// How likely a decoder finds a text, cut into windows of the tokenizer's `max_length`; the first token of each is not
/// predicted, and a last window of one token is left out.
///
/// # Errors
/// Input where the text is below two tokens; Refused where outputs are not finite.
pub fn likelihood(model: &LoadedModel, text: &str, how: Batching, progress: Progress) -> Result<Likelihood> {
    let tokenizer = model.tokenizer()?;
    let tokens = tokenizer.encode_all(text)?.0;
    let windows: Vec<&[u32]> = tokens.chunks(tokenizer.max_length()).filter(|window| window.len() > 1).collect();
    if windows.is_empty() {
        return Err(Error::input("the text is shorter than two tokens; nothing to predict"));
    }
    let device = device_of(model);
    let (mut found, mut n_done) = (Likelihood::default(), 0);
    // Windows are equally long, but for the last: it goes alone.
    for group in windows.chunk_by(|a, b| a.len() == b.len()).flat_map(|same| same.chunks(how.batch_size.max(1))) {
        let start = Instant::now();
        found.nll += nll_of(model, group, &device)?;
        found.batch_ms.push(elapsed_ms(start));
        found.n_tokens += group.iter().map(|window| window.len() - 1).sum::<usize>();
        n_done += group.len();
        progress(n_done, windows.len())?;
    }
    if found.nll.is_finite() {
        Ok(found)
    } else {
        Err(Error::refused("outputs are not finite; the weights are damaged"))
    }
}

/// The sum of negative log likelihoods of equally long windows.
fn nll_of(model: &LoadedModel, windows: &[&[u32]], device: &Device) -> Result<f64> {
    let (batch, length) = (windows.len(), windows[0].len());
    let network = model.network.as_decoder();
    let ids: Vec<i32> = windows.iter().flat_map(|window| window.iter().map(|&id| id as i32)).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [batch, length]), device);
    let states = network.last_state(ids.clone()).narrow(1, 0, length - 1);
    let next = ids.narrow(1, 1, length - 1);
    let step = (MAX_SCORES / (batch * network.vocab_size()).max(1)).max(1);
    let mut nll = 0.0;
    for start in (0..length - 1).step_by(step) {
        let n = step.min(length - 1 - start);
        let scores = log_softmax(network.scores(states.clone().narrow(1, start, n)), 2);
        let each = scores.gather(2, next.clone().narrow(1, start, n).unsqueeze_dim::<3>(2));
        nll -= to_host(each.reshape([batch, n]))?.values.iter().map(|&value| f64::from(value)).sum::<f64>();
    }
    Ok(nll)
}

struct HostRows {
    width: usize,
    values: Vec<f32>,
}

fn to_host(tensor: Tensor<2>) -> Result<HostRows> {
    let [_, width] = tensor.dims();
    // A device out of memory says so here, where its outputs are read.
    let failed =
        |what: String| Error::io("cannot run the model", std::path::Path::new("device"), std::io::Error::other(what));
    let data = tensor.try_into_data().map_err(|source| failed(source.to_string()))?;
    let values = data.try_into_vec_as::<f32>().map_err(|source| failed(format!("{source:?}")))?;
    Ok(HostRows { width, values })
}

fn add_rows(rows: &mut Vec<(usize, Vec<f32>)>, places: &[usize], found: &HostRows) {
    let found = metrics::rows(&found.values, found.width).map(<[f32]>::to_vec);
    rows.extend(places.iter().copied().zip(found));
}

fn device_of(model: &LoadedModel) -> Device {
    use burn::module::Module;
    model.network.devices().into_iter().next().unwrap_or_default()
}

fn elapsed_ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn takes_no_text(model: &LoadedModel) -> Error {
    Error::config(format!("{} takes images, found text", model.arch))
}
