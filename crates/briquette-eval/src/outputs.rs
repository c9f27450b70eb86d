//! Runs a model over data: one row of outputs per item, and batch times.

use crate::batch_budget::{BatchBudget, Pace};
use crate::metrics;
use crate::run_batch::{image_extents, text_extents};
use crate::stopwatch::Stopwatch;
use briquette_core::{Error, ErrorKind, Remedy, Result};
use briquette_models::batches::{image_batches, stacked, text_batches};
use briquette_models::data::{ImageInput, Images, Sentences};
use briquette_models::text::{Tokens, padded, segments};
use briquette_models::{GraphNet, Input, LoadedModel};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};
use std::sync::Arc;

/// A callback after every batch: the number of items done, and the total. An error stops the run.
pub type ItemProgress<'a> = &'a mut dyn FnMut(usize, usize) -> Result<()>;

/// One row of outputs per item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputRows {
    /// The number of values per row: classes, or the width of an embedding.
    pub width: usize,
    /// The rows in the order of the data, without skipped items.
    pub values: Vec<f32>,
    /// The index of each row's item, ascending. A classifier of tokens has a row for each token of an item.
    pub places: Vec<usize>,
    /// Whether the rows of texts are logits of classes, and not embeddings.
    pub are_logits: bool,
    /// The class of each row according to the data; empty without labels.
    pub labels: Vec<usize>,
    /// The milliseconds of each batch, from host inputs to host outputs; see [`BatchBudget::warms_up`].
    pub batch_ms: Vec<f64>,
    /// The number of items that could not be read.
    pub n_skipped: usize,
    /// The number of items in the largest batch; tiles, if images are tiled.
    pub batch_size: usize,
}

impl OutputRows {
    fn of_rows(rows: Vec<(usize, Vec<f32>)>, batch_ms: Vec<f64>, n_skipped: usize, pace: &Pace) -> Result<Self> {
        Self::of(rows, batch_ms, n_skipped, pace.largest)
    }

    /// Creates the outputs from rows with the indices of their items, in any order.
    pub(crate) fn of(
        mut rows: Vec<(usize, Vec<f32>)>,
        batch_ms: Vec<f64>,
        n_skipped: usize,
        batch_size: usize,
    ) -> Result<Self> {
        rows.sort_by_key(|(index, _)| *index);
        let broken = rows.iter().filter(|(_, row)| !row.iter().all(|value| value.is_finite())).count();
        if broken > 0 {
            let message = format!("{broken} of {} outputs are not finite; the weights are damaged", rows.len());
            return Err(Error::refused(message));
        }
        let width = rows.first().map_or(0, |(_, row)| row.len());
        let places = rows.iter().map(|(index, _)| *index).collect();
        let mut values = Vec::with_capacity(rows.len() * width);
        rows.into_iter().for_each(|(_, row)| values.extend(row));
        Ok(Self { width, values, places, batch_ms, n_skipped, batch_size, ..Self::default() })
    }
}

/// Returns the embedding of every sentence.
///
/// # Errors
/// - Input: a sentence has no tokens in the vocabulary, or the model has no tokenizer.
/// - Refused: outputs are not finite.
pub fn embed<'a>(
    model: &LoadedModel,
    sentences: &Sentences,
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<OutputRows> {
    let Input::Text { pooling, .. } = &model.input else { return Err(takes_no_text(model)) };
    of_texts(model, sentences, how.into(), progress, |ids, padding, _| {
        let states = model.network.encode(ids, padding.clone()).cast(FloatDType::F32);
        pooling.apply(states, padding).unsqueeze_dim(1)
    })
}

/// Returns the logits of every sentence and pair of sentences, or of each of its tokens, with the labels of the data.
///
/// # Errors
/// - Input: a label is not a class of the model. See [`embed`] for other errors.
///
/// # Panics
/// If the model has no layer of classes.
pub fn classify_text<'a>(
    model: &LoadedModel,
    sentences: &Sentences,
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<OutputRows> {
    let Input::Text { label_names, .. } = &model.input else { return Err(takes_no_text(model)) };
    let classes = TextClasses::of(sentences, label_names, &model.network)?;
    let rows = of_texts(model, sentences, how.into(), progress, |ids, padding, segments| {
        model.network.classify_text(ids, padding, segments).cast(FloatDType::F32)
    })?;
    Ok(classes.of_rows(rows))
}

/// The classes of sentences according to the data.
pub(crate) struct TextClasses(Vec<usize>);

impl TextClasses {
    /// Reads the labels of the data.
    ///
    /// # Errors
    /// See [`classify_text`].
    pub(crate) fn of(sentences: &Sentences, names: &[String], network: &GraphNet) -> Result<Self> {
        // The labels of texts are not those of tokens, and the label of a single score is a score.
        if network.classifies_tokens() || network.output_width() == 1 {
            return Ok(Self(Vec::new()));
        }
        Ok(Self(sentences.classes(names, network.output_width())?.unwrap_or_default()))
    }

    /// Marks rows as logits, with their classes.
    pub(crate) fn of_rows(&self, rows: OutputRows) -> OutputRows {
        let labels = rows.places.iter().filter_map(|&place| self.0.get(place).copied()).collect();
        OutputRows { are_logits: true, labels, ..rows }
    }
}

/// Runs sentences, and pairs together if the model reads them so.
///
/// `run` maps ids, padding and segments `[batch, length]` to `[batch, rows, width]`: a row for each text or token.
fn of_texts(
    model: &LoadedModel,
    sentences: &Sentences,
    how: BatchBudget,
    progress: ItemProgress,
    run: impl Fn(Tensor<2, Int>, Tensor<2, Bool>, Option<Tensor<2, Int>>) -> Tensor<3>,
) -> Result<OutputRows> {
    let (device, items) = (device_of(model), sentences.items(model.input.reads_pairs()));
    let n_items = items.len();
    let loader = text_batches(items, model.tokenizer()?, how.batching);
    let (mut rows, mut stopwatch, mut pace) = (Vec::new(), Stopwatch::on(&device, how.warms_up), Pace::new(how));
    let mut n_done = 0;
    for batch in loader.iter() {
        let batch = batch?;
        let n_tokens = batch.iter().map(|it| it.item.len()).max().unwrap_or(0);
        pace.run(
            || model.run_bytes(text_extents(n_tokens)),
            &batch,
            |batch| {
                let tokens: Vec<Tokens> = batch.iter().map(|it| it.item.clone()).collect();
                let (n_rows, found) = stopwatch.time(batch.len(), || {
                    let (ids, padding) = padded(&tokens, &device);
                    let second: Vec<_> = tokens.iter().map(Tokens::second).collect();
                    let segments = segments(&second, ids.dims()[1], &device);
                    let found = run(ids, padding, segments);
                    let [n_texts, n_rows, width] = found.dims();
                    Ok((n_rows, to_host(found.reshape([n_texts * n_rows, width]))?))
                })?;
                for (text, item) in found.values.chunks(n_rows * found.width).zip(batch) {
                    // Padding has no row.
                    let n_rows = n_rows.min(item.item.len());
                    let own = text.chunks(found.width).take(n_rows);
                    rows.extend(own.map(|row| (item.index, row.to_vec())));
                }
                n_done += batch.len();
                progress(n_done, n_items)
            },
        )?;
        pace.check_outputs(extents_of(&rows), [n_done, n_items])?;
    }
    check_count(n_done, n_items)?;
    OutputRows::of_rows(rows, stopwatch.batch_ms, 0, &pace)
}

/// Returns the logits of every image that decodes.
///
/// # Errors
/// - Input: no image decodes, one does not and `is_strict` is set, or a label is not a class.
/// - Refused: outputs are not finite.
pub fn classify<'a>(
    model: &LoadedModel,
    images: &Arc<Images>,
    input: &ImageInput,
    is_strict: bool,
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<OutputRows> {
    let (device, how): (Device, BatchBudget) = (device_of(model), how.into());
    let stopwatch = Stopwatch::on(&device, how.warms_up);
    let mut scores = ScoreCollector { model, images, device, rows: Vec::new(), stopwatch, n_skipped: 0 };
    let mut pace = Pace::new(how);
    match input.tile {
        Some(tile) => scores.of_tiles(input, tile, is_strict, &mut pace, progress)?,
        None => scores.of_images(input, is_strict, &mut pace, progress)?,
    }
    check_count(scores.rows.len() + scores.n_skipped, images.len())?;
    if scores.rows.is_empty() {
        let message = "no image decodes, nothing to evaluate; set data.strict to see the reason";
        return Err(Error::input(message).at(images.path().display()).with_remedy(Remedy::SetKey("data.strict")));
    }
    OutputRows::of_rows(scores.rows, scores.stopwatch.batch_ms, scores.n_skipped, &pace)
}

/// The logits collected so far.
struct ScoreCollector<'a> {
    model: &'a LoadedModel,
    images: &'a Arc<Images>,
    device: Device,
    rows: Vec<(usize, Vec<f32>)>,
    stopwatch: Stopwatch,
    n_skipped: usize,
}

impl ScoreCollector<'_> {
    fn classify(&mut self, pixels: &[Vec<f32>], extents: [usize; 3]) -> Result<HostRows> {
        let run = || to_host(self.model.classify(stacked(pixels, extents, &self.device)));
        let scores = self.stopwatch.time(pixels.len(), run)?;
        if self.rows.is_empty() {
            // The first batch shows the number of classes, so labels beyond it are refused before the rest
            // runs.
            self.images.check_labels(scores.width)?;
        }
        Ok(scores)
    }

    /// Refuses to read an image beyond the memory limit. There may be no such image.
    fn check_next(&self, index: usize, input: &ImageInput, pace: &Pace) -> Result<()> {
        match index < self.images.len() {
            true => pace.check_reading(self.images.file(index), || self.images.reading_bytes(index, input)),
            false => Ok(()),
        }
    }

    fn of_images(
        &mut self,
        input: &ImageInput,
        is_strict: bool,
        pace: &mut Pace,
        progress: ItemProgress,
    ) -> Result<()> {
        let images = self.images;
        let extents = images.extents(input)?;
        let image_bytes = || self.model.run_bytes(image_extents(extents));
        let mut waiting: Vec<(usize, Vec<f32>)> = Vec::new();
        let batches = image_batches(images, input, is_strict, pace.loading());
        let mut batches = batches.iter();
        loop {
            self.check_next(self.rows.len() + waiting.len() + self.n_skipped, input, pace)?;
            let Some(batch) = batches.next() else { break };
            let batch = batch?;
            self.n_skipped += batch.iter().filter(|it| it.item.is_none()).count();
            waiting.extend(batch.into_iter().filter_map(|it| Some((it.index, it.item?))));
            let n_read = self.rows.len() + waiting.len() + self.n_skipped;
            while !waiting.is_empty() && (waiting.len() >= pace.size() || n_read == images.len()) {
                let now: Vec<_> = waiting.drain(..pace.size().min(waiting.len())).collect();
                pace.run(image_bytes, &now, |batch| {
                    let (places, pixels): (Vec<usize>, Vec<Vec<f32>>) = batch.iter().cloned().unzip();
                    let scores = self.classify(&pixels, extents)?;
                    add_rows(&mut self.rows, &places, &scores);
                    Ok(())
                })?;
            }
            let n_done = self.rows.len() + self.n_skipped;
            pace.check_outputs(extents_of(&self.rows), [n_done, images.len()])?;
            progress(n_done, images.len())?;
        }
        Ok(())
    }

    /// Computes the mean logits of an image's tiles, image by image. Memory is cleaned up in between.
    fn of_tiles(
        &mut self,
        input: &ImageInput,
        tile: usize,
        is_strict: bool,
        pace: &mut Pace,
        progress: ItemProgress,
    ) -> Result<()> {
        let images = self.images;
        for index in 0..images.len() {
            self.check_next(index, input, pace)?;
            match images.tiles(index, input, tile) {
                Ok(tiles) => {
                    let mut sums = Vec::new();
                    let tile_bytes = || self.model.run_bytes(image_extents(tiles.extents()));
                    pace.run(tile_bytes, tiles.corners(), |corners| {
                        let pixels: Vec<Vec<f32>> = corners.iter().map(|&at| tiles.pixels(at, input)).collect();
                        let scores = self.classify(&pixels, tiles.extents())?;
                        sums.resize(scores.width, 0.0);
                        for row in metrics::rows(&scores.values, scores.width) {
                            sums.iter_mut().zip(row).for_each(|(sum, score)| *sum += score);
                        }
                        self.device.memory_cleanup();
                        Ok(())
                    })?;
                    let n = tiles.corners().len() as f32;
                    self.rows.push((index, sums.into_iter().map(|sum| sum / n).collect()));
                }
                Err(error) if is_strict || error.kind == ErrorKind::Config => return Err(error),
                Err(_) => self.n_skipped += 1,
            }
            progress(self.rows.len() + self.n_skipped, images.len())?;
        }
        Ok(())
    }
}

pub(crate) struct HostRows {
    width: usize,
    pub(crate) values: Vec<f32>,
}

pub(crate) fn to_host(tensor: Tensor<2>) -> Result<HostRows> {
    let [_, width] = tensor.dims();
    // A device that runs out of memory fails here, when its outputs are read.
    let failed =
        |what: String| Error::io("cannot run the model", std::path::Path::new("device"), std::io::Error::other(what));
    let data = tensor.try_into_data().map_err(|source| failed(source.to_string()))?;
    let values = data.try_into_vec_as::<f32>().map_err(|source| failed(format!("{source:?}")))?;
    Ok(HostRows { width, values })
}

/// Returns the number of rows and their width.
fn extents_of(rows: &[(usize, Vec<f32>)]) -> [usize; 2] {
    [rows.len(), rows.last().map_or(0, |(_, row)| row.len())]
}

fn add_rows(rows: &mut Vec<(usize, Vec<f32>)>, places: &[usize], found: &HostRows) {
    let found = metrics::rows(&found.values, found.width).map(<[f32]>::to_vec);
    rows.extend(places.iter().copied().zip(found));
}

pub(crate) fn device_of(model: &LoadedModel) -> Device {
    model.network.device()
}

/// Checks the number of items: a loader thread that dies yields fewer items without an error.
fn check_count(found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::bug(format!("{found} of {expected} items were prepared, without an error")))
}

fn takes_no_text(model: &LoadedModel) -> Error {
    Error::config(format!("{} takes images, found text", model.arch))
}
