//! What a model is worth: against labels, and against the model it came from.

use crate::budget::Budget;
use crate::metrics;
pub use crate::outputs::RunOutputs;
use crate::outputs::{self, ItemProgress, OutputRows};
use crate::walk::{Room, run_offloaded};
use briquette_core::memory::MemoryMeter;
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::{Checkpoint, Choice};
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec, ImageInput, Images, Sentences};
use briquette_models::memory::{Memory, MemoryWatch};
use briquette_models::{Arch, Input, LoadedModel, ModelTask};
use briquette_nn::Held;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Sentences whose pairs are compared; their number grows with the square.
const MAX_PAIRED: usize = 2000;

/// What to evaluate, against what, on what.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model: a file, an index or a directory. Compressed weights are held as layers can run them.
    pub model: PathBuf,
    /// The model it came from.
    pub reference: Option<PathBuf>,
    /// Which entry is the model, in a file that holds several: the model's file or the reference's. Of the reference it is the entry
    /// that the output was made from, where nothing is said.
    pub choice: Choice,
    /// The model's architecture, where files do not tell; the reference's too, where its files do not.
    pub arch: Option<Arch>,
    /// What to run them on.
    pub data: DataSpec,
    /// How data is batched.
    pub batching: Batching,
    /// What running may take.
    pub fits: Fits,
    /// A directory for what lies between blocks, where a model of text is to run with the weights of one block in memory at a time.
    pub offload: Option<PathBuf>,
    /// Where to run.
    pub device: Device,
}

/// What running a model may take, see [`Budget`], and in what type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fits {
    /// Whether batches may be smaller than asked for, so that they fit.
    pub is_auto: bool,
    /// The most bytes that the last meter may show.
    pub limit: Option<u64>,
    /// What networks compute in, where it is not f32.
    pub dtype: Option<FloatDType>,
}

/// What was found. Metrics are by name, as gates name them; none is there that has not been measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The architecture.
    pub arch: Arch,
    /// Sentences, images, or tokens predicted.
    pub n_items: usize,
    /// Images that did not decode.
    pub n_skipped: usize,
    /// Items of the model's largest batch; tiles, where images are cut into those.
    pub batch_size: usize,
    /// Items of the reference's.
    pub reference_batch_size: Option<usize>,
    /// What was measured: `cosine`, `cosine_min`, `pair_spearman`, `sts_spearman`, `accuracy`, `top5`, `agreement`,
    /// `kl`, `perplexity`; and `reference_` of those that the reference has of its own.
    pub metrics: BTreeMap<String, f64>,
    /// How long the model took.
    pub latency: Latency,
    /// How long the reference took.
    pub reference_latency: Option<Latency>,
    /// How the model's weights are held, and so what computes with them: see [`briquette_nn::held`].
    pub held: BTreeMap<String, Held>,
    /// How the reference's are.
    pub reference_held: BTreeMap<String, Held>,
    /// What the model took, a meter each.
    pub memory: Vec<Memory>,
    /// What the reference took.
    pub reference_memory: Vec<Memory>,
}

/// How long batches took.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Batches.
    pub n_batches: usize,
    /// Median, in milliseconds a batch.
    pub p50_ms: f64,
    /// What nine of ten batches stay below.
    pub p90_ms: f64,
    /// What 99 of 100 stay below.
    pub p99_ms: f64,
    /// Items a second, over all batches.
    pub items_per_s: f64,
}

impl Latency {
    fn of(batch_ms: &[f64], n_items: usize) -> Self {
        let total: f64 = batch_ms.iter().sum();
        let items_per_s = if total > 0.0 { n_items as f64 / total * 1e3 } else { 0.0 };
        let at = |q| metrics::percentile(batch_ms, q);
        Self { n_batches: batch_ms.len(), p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), items_per_s }
    }
}

/// Runs the reference, then the model, over the data and compares. One model is in memory at a time.
///
/// # Errors
/// Config where the request cannot be; Input where data or models are damaged, empty or do not fit; Refused where
/// outputs are not finite; Io.
pub fn evaluate(request: &Request, meters: &[&dyn MemoryMeter], progress: ItemProgress) -> Result<Evaluation> {
    let choice = Choice { is_for_one_of_two: request.reference.is_some(), ..request.choice.clone() };
    let checkpoint = Checkpoint::open_as(&request.model, &choice)?;
    let arch = request.arch.map_or_else(|| Arch::detect(&checkpoint), Ok)?;
    let of_reference = choice.or_of(&checkpoint);
    let reference = request.reference.as_ref().map(|path| reference_of(path, &of_reference, request.arch, arch));
    let reference = reference.transpose()?;
    let opened = [Some(&checkpoint), reference.as_ref().map(|(reference, _)| reference)];
    choice.check_used(&opened.into_iter().flatten().collect::<Vec<_>>())?;
    // Opened before anything runs: running the reference takes long, and would be in vain where data cannot be read.
    let data = request.data.open(arch.task())?;
    let run = |checkpoint: &Checkpoint, arch: Arch, progress: ItemProgress| -> Result<_> {
        let mut watch = MemoryWatch::start(meters, checkpoint, arch, request.fits.dtype, &request.device);
        if let Some(directory) = &request.offload {
            let room = Room { max_bytes: request.fits.limit.map(|limit| limit / 4), directory };
            let over = (&data, &request.data);
            watch.loaded();
            let found = run_offloaded(checkpoint, arch, &request.device, over, room, progress)?;
            watch.ran();
            return Ok((found, (watch.dropped(), BTreeMap::new())));
        }
        let mut model = LoadedModel::load(checkpoint, Some(arch), &request.device)?;
        if let Some(dtype) = request.fits.dtype {
            model = model.computing_in(dtype).map_err(|error| error.at(checkpoint.path().display()))?;
        }
        watch.loaded();
        let held = briquette_nn::held(&model.network);
        let Fits { is_auto, limit, .. } = request.fits;
        // The device's meters come after the process's. Only a meter that keeps a peak can tell what a batch took.
        let meter = meters.iter().rfind(|meter| meter.peak_bytes().is_some()).copied();
        let budget = Budget { batching: request.batching, is_auto, limit, meter, warms_up: true };
        let found = run(&model, &data, &request.data, budget, progress)?;
        watch.ran();
        watch.drop_network(model.network, &request.device);
        drop(model.input);
        Ok((found, (watch.dropped(), held)))
    };
    let reference = match reference {
        Some((checkpoint, arch)) => Some(run(&checkpoint, arch, progress)?),
        None => None,
    };
    let (found, (memory, held)) = run(&checkpoint, arch, progress)?;
    let (reference, figures) = reference.unzip();
    let (reference_memory, reference_held) = figures.unwrap_or_default();
    let evaluation = compare(arch, &data, &found, reference.as_ref())?;
    Ok(Evaluation { memory, reference_memory, held, reference_held, ..evaluation })
}

/// The model to compare with, which takes the same data.
fn reference_of(path: &Path, choice: &Choice, asked: Option<Arch>, of_model: Arch) -> Result<(Checkpoint, Arch)> {
    let checkpoint = Checkpoint::open_as(path, choice)?;
    let arch = Arch::detect(&checkpoint).or_else(|error| asked.ok_or(error))?;
    if arch.task() != of_model.task() {
        let message = format!("it is {arch}, and the model to compare with it is {of_model}: they take other data");
        return Err(Error::config(format!("{message}; name the model it came from")).at(path.display()));
    }
    Ok((checkpoint, arch))
}

/// Runs a loaded model over data; a model in training is run as it would be afterwards, without dropout.
///
/// # Errors
/// As [`evaluate`].
pub fn run<'a>(
    model: &LoadedModel,
    data: &Data,
    spec: &DataSpec,
    how: impl Into<Budget<'a>>,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    let mut model = model.for_running();
    if let (Some(max_length), Input::Text { .. }) = (spec.max_length, &model.input) {
        model.set_max_length(max_length)?;
    }
    let (model, how): (&LoadedModel, Budget) = (&model, how.into());
    match (data, &model.input) {
        (Data::Sentences(sentences), Input::Text { .. }) if model.arch.task() == ModelTask::Encoder => {
            outputs::embed(model, sentences, how, progress).map(RunOutputs::Rows)
        }
        (Data::Document(text), Input::Text { .. }) if model.arch.task() == ModelTask::Decoder => {
            model.tokenizer()?;
            let named =
                |error: Error| if error.kind == ErrorKind::Input { error.at(spec.path.display()) } else { error };
            outputs::likelihood(model, text, how, progress).map(RunOutputs::Likelihood).map_err(named)
        }
        (Data::Images(images), Input::Images(input)) => {
            let input: ImageInput = spec.image_input(input)?;
            outputs::classify(model, images, &input, spec.strict, how, progress).map(RunOutputs::Rows)
        }
        _ => {
            let message = format!("{} cannot be evaluated on this kind of data; give some of its own", model.arch);
            Err(Error::config(message).at(spec.path.display()))
        }
    }
}

/// What two runs over the same data say.
///
/// # Errors
/// Input where labels are out of range or the outputs of the two do not compare.
pub fn compare(arch: Arch, data: &Data, found: &RunOutputs, reference: Option<&RunOutputs>) -> Result<Evaluation> {
    let mut metrics = BTreeMap::new();
    match (data, found, reference) {
        (Data::Document(_), RunOutputs::Likelihood(found), reference) => {
            metrics.insert("perplexity".to_string(), metrics::perplexity(found.nll, found.n_tokens));
            if let Some(RunOutputs::Likelihood(reference)) = reference {
                let perplexity = metrics::perplexity(reference.nll, reference.n_tokens);
                metrics.insert("reference_perplexity".to_string(), perplexity);
            }
        }
        (Data::Sentences(sentences), RunOutputs::Rows(found), reference) => {
            metrics.extend(of_embeddings(sentences, found, rows_of(reference, found)?));
        }
        (Data::Images(images), RunOutputs::Rows(found), reference) => {
            metrics.extend(of_scores(images, found, rows_of(reference, found)?)?);
        }
        _ => return Err(Error::bug("a run does not belong to its data")),
    }
    let (n_items, n_skipped, latency) = summary(found);
    Ok(Evaluation {
        arch,
        n_items,
        n_skipped,
        batch_size: found.batch_size(),
        reference_batch_size: reference.map(RunOutputs::batch_size),
        metrics,
        latency,
        reference_latency: reference.map(|run| summary(run).2),
        held: BTreeMap::new(),
        reference_held: BTreeMap::new(),
        memory: Vec::new(),
        reference_memory: Vec::new(),
    })
}

fn summary(run: &RunOutputs) -> (usize, usize, Latency) {
    match run {
        RunOutputs::Rows(rows) => (rows.places.len(), rows.n_skipped, Latency::of(&rows.batch_ms, rows.places.len())),
        RunOutputs::Likelihood(found) => (found.n_tokens, 0, Latency::of(&found.batch_ms, found.n_tokens)),
    }
}

/// The reference's rows, which must be of the same width.
fn rows_of<'a>(reference: Option<&'a RunOutputs>, found: &OutputRows) -> Result<Option<&'a OutputRows>> {
    match reference {
        Some(RunOutputs::Rows(reference)) if (reference.width, &reference.places) == (found.width, &found.places) => {
            Ok(Some(reference))
        }
        Some(RunOutputs::Rows(reference)) => {
            let message = format!("the reference gives {} values an item, the model {}", reference.width, found.width);
            Err(Error::input(format!("{message}; they cannot be compared")))
        }
        Some(RunOutputs::Likelihood(_)) => Err(Error::bug("a run does not belong to its data")),
        None => Ok(None),
    }
}

type NamedMetrics = Vec<(String, f64)>;

fn of_embeddings(sentences: &Sentences, found: &OutputRows, reference: Option<&OutputRows>) -> NamedMetrics {
    let mut metrics = NamedMetrics::new();
    if let Some(reference) = reference {
        metrics.extend(cosines(found, reference));
        let paired = |outputs: &OutputRows| {
            let n = outputs.values.len().min(MAX_PAIRED * outputs.width);
            metrics::pair_cosines(&outputs.values[..n], outputs.width)
        };
        let spearman = metrics::spearman(&paired(reference), &paired(found));
        metrics.extend(spearman.map(|value| ("pair_spearman".into(), value)));
        metrics.extend(of_pairs(sentences, reference).map(|value| ("reference_sts_spearman".into(), value)));
    }
    metrics.extend(of_pairs(sentences, found).map(|value| ("sts_spearman".into(), value)));
    metrics
}

/// How alike the rows of two runs are: on average, and at the least.
fn cosines(found: &OutputRows, reference: &OutputRows) -> NamedMetrics {
    let pairs = metrics::rows(&reference.values, found.width).zip(metrics::rows(&found.values, found.width));
    let cosines: Vec<f64> = pairs.map(|(a, b)| metrics::cosine(a, b)).collect();
    let least = cosines.iter().copied().fold(1.0, f64::min);
    vec![("cosine".into(), metrics::mean(cosines.into_iter())), ("cosine_min".into(), least)]
}

/// How well cosines rank the pairs that people judged.
fn of_pairs(sentences: &Sentences, outputs: &OutputRows) -> Option<f64> {
    let row = |index: usize| &outputs.values[index * outputs.width..(index + 1) * outputs.width];
    let cosines: Vec<f64> = sentences.pairs.iter().map(|&(a, b, _)| metrics::cosine(row(a), row(b))).collect();
    let scores: Vec<f64> = sentences.pairs.iter().map(|&(.., score)| score).collect();
    metrics::spearman(&cosines, &scores)
}

fn of_scores(images: &Images, found: &OutputRows, reference: Option<&OutputRows>) -> Result<NamedMetrics> {
    let mut metrics = NamedMetrics::new();
    let labels: Option<Vec<usize>> = found.places.iter().map(|&place| images.label(place)).collect();
    if let Some(labels) = labels {
        images.check_labels(found.width)?;
        let mut push = |prefix: &str, outputs: &OutputRows| {
            metrics.push((format!("{prefix}accuracy"), metrics::accuracy(&outputs.values, &labels)));
            if found.width > 5 {
                metrics.push((format!("{prefix}top5"), metrics::top_k(&outputs.values, &labels, 5)));
            }
        };
        push("", found);
        reference.iter().for_each(|reference| push("reference_", reference));
    }
    if let Some(reference) = reference {
        metrics.extend(cosines(found, reference));
        metrics.push(("agreement".into(), metrics::agreement(&reference.values, &found.values, found.width)));
        metrics.push(("kl".into(), metrics::kl(&reference.values, &found.values, found.width)));
    }
    Ok(metrics)
}
