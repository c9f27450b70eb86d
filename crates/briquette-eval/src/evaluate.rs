//! Evaluates a model against labels and against its reference model.

use crate::batch_budget::BatchBudget;
use crate::generate::continuation;
use crate::input_difference::input_difference;
use crate::layerwise::{Room, exit_of, input_within, run_offloaded};
use crate::likelihood::likelihood;
use crate::metrics;
use crate::nearness::{HeadAndStates, Nearness, nearness};
use crate::outputs::{self, ItemProgress};
use crate::pairs::{likelihood_of_pairs, of_transcripts, transcripts};
use crate::quality::metrics_of;
pub use crate::run_outputs::RunOutputs;
use crate::state_file::StateFile;
use briquette_core::memory::{MemoryLimit, MemoryMeter};
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::{Checkpoint, Choice};
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec, ImageInput};
use briquette_models::memory::{Memory, MemoryWatch, least_run_bytes, predicted_bytes};
use briquette_models::{Arch, GraphNet, Input, LoadedModel, ModelTask};
use briquette_nn::Held;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An evaluation: the model, its reference and the data.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model: a file, an index or a directory. Compressed weights stay in a form that layers can run.
    pub model: PathBuf,
    /// The reference model.
    pub reference: Option<PathBuf>,
    /// The entry to read, if the model or the reference has several.
    ///
    /// For the reference, the default is the entry that the output was made from.
    pub choice: Choice,
    /// The architecture of the model and its reference, if their files do not determine it.
    pub arch: Option<Arch>,
    /// The data to run on.
    pub data: DataSpec,
    /// How data is batched.
    pub batching: Batching,
    /// The memory limit and compute type.
    pub fits: Fits,
    /// A directory for hidden states. With it, text models run with the weights of one block in memory at a
    /// time.
    pub offload: Option<PathBuf>,
    /// The device to run on.
    pub device: Device,
}

/// The memory limit of a run, see [`BatchBudget`], and its compute type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fits {
    /// Whether batches may be smaller than the batch size, so that they fit in memory.
    pub is_auto: bool,
    /// The limit of the last meter's reading in bytes.
    pub limit: Option<u64>,
    /// The compute type; `None` for f32.
    pub dtype: Option<FloatDType>,
}

/// The results of an evaluation. Metrics have the names that gates use; only measured metrics are present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The architecture.
    pub arch: Arch,
    /// The number of sentences, images, classified tokens, or predicted tokens.
    pub n_items: usize,
    /// The number of images that did not decode.
    pub n_skipped: usize,
    /// The number of items in the model's largest batch; tiles, if images are tiled.
    pub batch_size: usize,
    /// The number of items in the reference's largest batch.
    pub reference_batch_size: Option<usize>,
    /// The measured metrics by name.
    ///
    /// `cosine`, `cosine_min`, `pair_spearman`, `score_spearman`, `sts_spearman`, `accuracy`, `f1`, `top5`, `agreement`, `kl`,
    /// `perplexity`, `wer` (word error rate), `same_words`; and `reference_` versions of the metrics that the reference has by itself.
    pub metrics: BTreeMap<String, f64>,
    /// How the model prepares items in another way than its reference, in words.
    pub input_difference: Option<String>,
    /// The text that a decoder generates after [`PROMPT`](crate::generate::PROMPT), if its positions suffice.
    pub continuation: Option<String>,
    /// The text that the reference generates.
    pub reference_continuation: Option<String>,
    /// The batch times of the model.
    pub latency: Latency,
    /// The batch times of the reference.
    pub reference_latency: Option<Latency>,
    /// How the model's weights are stored in memory, which selects the kernels: see [`briquette_nn::held`].
    pub held: BTreeMap<String, Held>,
    /// How the reference's weights are stored in memory.
    pub reference_held: BTreeMap<String, Held>,
    /// The model's memory, by meter.
    pub memory: Vec<Memory>,
    /// The reference's memory, by meter.
    pub reference_memory: Vec<Memory>,
}

/// Batch times.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// The number of batches.
    pub n_batches: usize,
    /// The median, in milliseconds per batch.
    pub p50_ms: f64,
    /// The 90th percentile, in milliseconds per batch.
    pub p90_ms: f64,
    /// The 99th percentile, in milliseconds per batch.
    pub p99_ms: f64,
    /// Items per second over all batches.
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

/// Runs the reference and then the model over the data, and compares them. One model is in memory at a time.
///
/// # Errors
/// - Config: the request is invalid.
/// - Input: the data or a model is damaged or empty, or they do not match.
/// - Refused: outputs are not finite.
/// - Io: a file cannot be read or written.
pub fn evaluate(request: &Request, meters: &[&dyn MemoryMeter], progress: ItemProgress) -> Result<Evaluation> {
    let choice = Choice { is_for_one_of_two: request.reference.is_some(), ..request.choice.clone() };
    let checkpoint = Checkpoint::open_as(&request.model, &choice)?;
    let arch = request.arch.map_or_else(|| Arch::detect(&checkpoint), Ok)?;
    let of_reference = choice.or_of(&checkpoint);
    let reference = request.reference.as_ref().map(|path| reference_of(path, &of_reference, request.arch, arch));
    let reference = reference.transpose()?;
    let opened = [Some(&checkpoint), reference.as_ref().map(|(reference, _)| reference)];
    choice.check_used(&opened.into_iter().flatten().collect::<Vec<_>>())?;
    // Opens the data before the reference runs, so that unreadable data fails early.
    let data = request.data.open_within(arch.task(), limit_of(request, meters))?;
    if let (Some(_), Some(_)) = (&request.offload, request.data.stride) {
        return Err(Error::config("memory.offload does not support overlapping windows; remove it, or the stride")
            .at("data.stride"));
    }
    let original = reference.as_ref().map(|(checkpoint, arch)| (checkpoint, *arch));
    let runner = Runner { request, data: &data, meters, original };
    let before = original.map(|(checkpoint, arch)| runner.run(checkpoint, arch, None, progress)).transpose()?;
    let (before, of_before) = before.unzip();
    let of_before = of_before.unwrap_or_default();
    let (found, after) = runner.run(&checkpoint, arch, of_before.kept.as_ref(), progress)?;
    let mut evaluation = compare(arch, &data, &found, before.as_ref())?;
    if let Data::Pairs(pairs) = &data {
        evaluation.metrics.extend(of_transcripts(
            &pairs.targets,
            after.transcripts.as_ref(),
            of_before.transcripts.as_ref(),
        ));
    }
    if let Some(Nearness { agreement, kl }) = after.nearness {
        evaluation.metrics.extend([("agreement".to_string(), agreement), ("kl".to_string(), kl)]);
    }
    evaluation.input_difference = match original {
        Some((reference, of_reference)) => {
            let [own, other] = [(arch, &checkpoint), (of_reference, reference)]
                .map(|(arch, checkpoint)| input_within(runner.limit(), arch, checkpoint));
            input_difference(&own?, &other?, &data, &request.data)?
        }
        None => None,
    };
    Ok(Evaluation {
        memory: after.memory,
        reference_memory: of_before.memory,
        held: after.held,
        reference_held: of_before.held,
        continuation: after.continuation,
        reference_continuation: of_before.continuation,
        ..evaluation
    })
}

/// The results of a run besides its outputs.
#[derive(Default)]
struct Ran {
    memory: Vec<Memory>,
    held: BTreeMap<String, Held>,
    continuation: Option<String>,
    /// The texts that a model of speech writes.
    transcripts: Option<Vec<String>>,
    kept: Option<StateFile>,
    nearness: Option<Nearness>,
}

/// The evaluation of several models in turn.
#[derive(Clone, Copy)]
struct Runner<'a> {
    request: &'a Request,
    data: &'a Data,
    meters: &'a [&'a dyn MemoryMeter],
    original: Option<(&'a Checkpoint, Arch)>,
}

impl Runner<'_> {
    /// Runs a model. If `before` has the original's head inputs, a decoder is compared with them.
    fn run(
        &self,
        checkpoint: &Checkpoint,
        arch: Arch,
        before: Option<&StateFile>,
        progress: ItemProgress,
    ) -> Result<(RunOutputs, Ran)> {
        let Request { fits: Fits { is_auto, limit, dtype }, device, data: spec, .. } = self.request;
        let is_decoder = arch.task() == ModelTask::Decoder;
        let keeps = arch.task().predicts_tokens() && self.original.is_some();
        let mut kept = keeps.then(|| StateFile::create_in(&std::env::temp_dir())).transpose()?;
        let mut watch = MemoryWatch::start(self.meters, checkpoint, arch, *dtype, device);
        if let Some(directory) = &self.request.offload {
            watch.loaded();
            let limit = self.limit();
            let room = Room::within(limit, directory);
            let found = run_offloaded(checkpoint, arch, device, (self.data, spec), room, kept.as_mut(), progress)?;
            watch.ran();
            let head =
                before.map(|_| exit_of(checkpoint, arch, (checkpoint, true), device, FloatDType::F32)).transpose()?;
            let nearness = self.nearness(before, head.as_ref(), kept.as_ref(), progress)?;
            let what = || format!("run {} and compare it", checkpoint.path().display());
            limit.map_or(Ok(()), |limit| limit.check(&what()))?;
            return Ok((found, Ran { memory: watch.dropped(), kept, nearness, ..Ran::default() }));
        }
        // A network that does not fit is reported before its tokenizer is read.
        GraphNet::blank(arch, checkpoint, device)?;
        let input = input_within(self.limit(), arch, checkpoint)?;
        self.check_limit(checkpoint, arch)?;
        let mut model = LoadedModel::load_with(checkpoint, arch, input, device)?;
        if let Some(dtype) = *dtype {
            model = model.computing_in(dtype).map_err(|error| error.at(checkpoint.path().display()))?;
        }
        watch.loaded();
        let held = briquette_nn::held(&model.network);
        // The device's meters follow those of the process. Only a meter with a peak can measure a batch.
        let meter = self.meters.iter().rfind(|meter| meter.peak_bytes().is_some()).copied();
        let budget =
            BatchBudget { batching: self.request.batching, is_auto: *is_auto, limit: *limit, meter, warms_up: true };
        let found = run_keeping(&model, self.data, spec, kept.as_mut(), budget, progress)?;
        watch.ran();
        // The following steps are not part of the measurement.
        let continuation = if is_decoder { continuation(&model, progress)? } else { None };
        let transcripts = transcripts(&model, self.data, progress)?;
        let nearness = self.nearness(before, Some(&model.network), kept.as_ref(), progress)?;
        watch.drop_network(model.network, device);
        drop(model.input);
        Ok((found, Ran { memory: watch.dropped(), held, continuation, transcripts, kept, nearness }))
    }

    /// Returns the memory limit and its meter.
    fn limit(&self) -> Option<MemoryLimit<'_>> {
        limit_of(self.request, self.meters)
    }

    /// Refuses to load weights that exceed the memory limit together with the least that a run takes.
    fn check_limit(&self, checkpoint: &Checkpoint, arch: Arch) -> Result<()> {
        let (device, fits) = (&self.request.device, &self.request.fits);
        let Some(limit) = self.limit() else { return Ok(()) };
        let weights = predicted_bytes(checkpoint, Some(arch), fits.dtype, device);
        let n_bytes = weights + least_run_bytes(checkpoint, arch, device);
        let found = limit.check_before(&format!("load and run {}", checkpoint.path().display()), n_bytes);
        found.map_err(|error| Error {
            message: format!("{}, or keep one block in memory (--offload)", error.message),
            ..error
        })
    }

    /// Compares a decoder with the original by the head inputs of both. Loads only the original's head.
    fn nearness(
        &self,
        before: Option<&StateFile>,
        network: Option<&GraphNet>,
        kept: Option<&StateFile>,
        progress: ItemProgress,
    ) -> Result<Option<Nearness>> {
        let (Some((checkpoint, arch)), Some(before)) = (self.original, before) else { return Ok(None) };
        let (Some(network), Some(states)) = (network, kept) else { return Ok(None) };
        let Request { fits, device, offload, .. } = self.request;
        // Layerwise runs compute in f32.
        let compute = fits.dtype.filter(|_| offload.is_none()).unwrap_or(FloatDType::F32);
        let head = exit_of(checkpoint, arch, (checkpoint, true), device, compute)?;
        let original = HeadAndStates { network: &head, states: before };
        nearness(original, HeadAndStates { network, states }, (device, compute), progress)
    }
}

/// Returns the memory limit of a request, with the meter that has a peak.
fn limit_of<'a>(request: &Request, meters: &'a [&'a dyn MemoryMeter]) -> Option<MemoryLimit<'a>> {
    let meter = meters.iter().rfind(|meter| meter.peak_bytes().is_some());
    request.fits.limit.zip(meter).map(|(n_bytes, meter)| MemoryLimit::set(n_bytes, *meter))
}

/// Opens the reference model and checks that it takes the same data.
fn reference_of(path: &Path, choice: &Choice, requested: Option<Arch>, of_model: Arch) -> Result<(Checkpoint, Arch)> {
    let checkpoint = Checkpoint::open_as(path, choice)?;
    let arch = Arch::detect(&checkpoint).or_else(|error| requested.ok_or(error))?;
    if arch.task() != of_model.task() {
        let message = format!("found {arch}, expected a model that takes the same data as {of_model}");
        return Err(Error::config(format!("{message}; use the model it came from")).at(path.display()));
    }
    Ok((checkpoint, arch))
}

/// Runs a loaded model over data; a model in training runs without dropout.
///
/// # Errors
/// See [`evaluate`].
pub fn run<'a>(
    model: &LoadedModel,
    data: &Data,
    spec: &DataSpec,
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    run_keeping(model, data, spec, None, how.into(), progress)
}

/// Implements [`run`]; stores the head inputs of a decoder in `kept` if given.
fn run_keeping(
    model: &LoadedModel,
    data: &Data,
    spec: &DataSpec,
    kept: Option<&mut StateFile>,
    how: BatchBudget,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    let mut model = model.for_running();
    if let (Some(max_length), Input::Text { .. } | Input::Pair { .. }) = (spec.max_length, &model.input) {
        model.set_max_length(max_length)?;
    }
    let model = &model;
    let of_data = |kind: ErrorKind| matches!(kind, ErrorKind::Input | ErrorKind::Config);
    let named = |error: Error| if of_data(error.kind) { error.at(spec.path.display()) } else { error };
    match (data, &model.input) {
        (Data::Sentences(sentences), Input::Text { .. }) if model.network.classifies_text() => {
            outputs::classify_text(model, sentences, how, progress).map(RunOutputs::Rows).map_err(named)
        }
        (Data::Sentences(sentences), Input::Text { .. }) if model.arch.task() == ModelTask::Encoder => {
            outputs::embed(model, sentences, how, progress).map(RunOutputs::Rows)
        }
        (Data::Document(text), Input::Text { .. }) if model.arch.task() == ModelTask::Decoder => {
            model.tokenizer()?;
            likelihood(model, text, spec.stride, kept, how, progress).map(RunOutputs::Likelihood).map_err(named)
        }
        (Data::Pairs(_), Input::Pair { .. }) => {
            likelihood_of_pairs(model, (data, spec), kept, how, progress).map(RunOutputs::Likelihood)
        }
        (Data::Images(images), Input::Images(input)) => {
            let input: ImageInput = spec.image_input(input)?;
            outputs::classify(model, images, &input, spec.strict, how, progress).map(RunOutputs::Rows)
        }
        _ => {
            let message = format!("{} cannot be evaluated on this kind of data; use data for its task", model.arch);
            Err(Error::config(message).at(spec.path.display()))
        }
    }
}

/// Computes the metrics of two runs over the same data.
///
/// # Errors
/// Input: labels are out of range, or the outputs cannot be compared.
pub fn compare(arch: Arch, data: &Data, found: &RunOutputs, reference: Option<&RunOutputs>) -> Result<Evaluation> {
    let metrics = metrics_of(data, found, reference)?;
    let (n_items, n_skipped, latency) = summary(found);
    Ok(Evaluation {
        arch,
        n_items,
        n_skipped,
        batch_size: found.batch_size(),
        reference_batch_size: reference.map(RunOutputs::batch_size),
        metrics,
        input_difference: None,
        continuation: None,
        reference_continuation: None,
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
