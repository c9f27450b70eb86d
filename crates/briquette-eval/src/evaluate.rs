//! What a model is worth: against labels, and against the model it came from.

use crate::batch_budget::BatchBudget;
use crate::generate::continuation;
use crate::layerwise::{Room, exit_of, run_offloaded};
use crate::likelihood::likelihood;
use crate::metrics;
use crate::nearness::{HeadAndStates, Nearness, nearness};
use crate::outputs::{self, ItemProgress};
use crate::quality::metrics_of;
pub use crate::run_outputs::RunOutputs;
use crate::state_file::StateFile;
use briquette_core::memory::{MemoryLimit, MemoryMeter};
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::{Checkpoint, Choice};
use briquette_models::batches::Batching;
use briquette_models::data::{Data, DataSpec, ImageInput};
use briquette_models::memory::{Memory, MemoryWatch};
use briquette_models::{Arch, Input, LoadedModel, ModelTask, Network};
use briquette_nn::Held;
use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

/// What running a model may take, see [`BatchBudget`], and in what type.
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
    /// What the model goes on with after [`PROMPT`](crate::generate::PROMPT), where it is a decoder with room for that.
    pub continuation: Option<String>,
    /// What the reference does.
    pub reference_continuation: Option<String>,
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
    if let (Some(_), Some(_)) = (&request.offload, request.data.stride) {
        return Err(
            Error::config("memory.offload runs windows side by side; leave it out, or the stride").at("data.stride")
        );
    }
    let original = reference.as_ref().map(|(checkpoint, arch)| (checkpoint, *arch));
    let runner = Runner { request, data: &data, meters, original };
    let before = original.map(|(checkpoint, arch)| runner.run(checkpoint, arch, None, progress)).transpose()?;
    let (before, of_before) = before.unzip();
    let of_before = of_before.unwrap_or_default();
    let (found, after) = runner.run(&checkpoint, arch, of_before.kept.as_ref(), progress)?;
    let mut evaluation = compare(arch, &data, &found, before.as_ref())?;
    if let Some(Nearness { agreement, kl }) = after.nearness {
        evaluation.metrics.extend([("agreement".to_string(), agreement), ("kl".to_string(), kl)]);
    }
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

/// What a run leaves behind beside its outputs.
#[derive(Default)]
struct Ran {
    memory: Vec<Memory>,
    held: BTreeMap<String, Held>,
    continuation: Option<String>,
    kept: Option<StateFile>,
    nearness: Option<Nearness>,
}

/// Runs one model after the other.
#[derive(Clone, Copy)]
struct Runner<'a> {
    request: &'a Request,
    data: &'a Data,
    meters: &'a [&'a dyn MemoryMeter],
    original: Option<(&'a Checkpoint, Arch)>,
}

impl Runner<'_> {
    /// Runs a model; a decoder is compared with what the original left, `before`, where that ran.
    fn run(
        &self,
        checkpoint: &Checkpoint,
        arch: Arch,
        before: Option<&StateFile>,
        progress: ItemProgress,
    ) -> Result<(RunOutputs, Ran)> {
        let Request { fits: Fits { is_auto, limit, dtype }, device, data: spec, .. } = self.request;
        let is_decoder = arch.task() == ModelTask::Decoder;
        let keeps = is_decoder && self.original.is_some();
        let mut kept = keeps.then(|| StateFile::create_in(&std::env::temp_dir())).transpose()?;
        let mut watch = MemoryWatch::start(self.meters, checkpoint, arch, *dtype, device);
        if let Some(directory) = &self.request.offload {
            watch.loaded();
            let meter = self.meters.iter().rfind(|meter| meter.peak_bytes().is_some()).copied();
            let limit = limit.zip(meter).map(|(n_bytes, meter)| MemoryLimit::set(n_bytes, meter));
            let room = Room::within(limit, directory);
            let found = run_offloaded(checkpoint, arch, device, (self.data, spec), room, kept.as_mut(), progress)?;
            watch.ran();
            let head =
                if before.is_some() { exit_of(checkpoint, (arch, checkpoint), device, FloatDType::F32)? } else { None };
            let nearness = self.nearness(before, head.as_ref(), kept.as_ref(), progress)?;
            let what = || format!("run {} and to compare it", checkpoint.path().display());
            limit.map_or(Ok(()), |limit| limit.check(&what()))?;
            return Ok((found, Ran { memory: watch.dropped(), kept, nearness, ..Ran::default() }));
        }
        let mut model = LoadedModel::load(checkpoint, Some(arch), device)?;
        if let Some(dtype) = *dtype {
            model = model.computing_in(dtype).map_err(|error| error.at(checkpoint.path().display()))?;
        }
        watch.loaded();
        let held = briquette_nn::held(&model.network);
        // The device's meters come after the process's. Only a meter that keeps a peak can tell what a batch took.
        let meter = self.meters.iter().rfind(|meter| meter.peak_bytes().is_some()).copied();
        let budget =
            BatchBudget { batching: self.request.batching, is_auto: *is_auto, limit: *limit, meter, warms_up: true };
        let found = run_keeping(&model, self.data, spec, kept.as_mut(), budget, progress)?;
        watch.ran();
        // What follows is no part of what was measured.
        let continuation = if is_decoder { continuation(&model, progress)? } else { None };
        let nearness = self.nearness(before, Some(&model.network), kept.as_ref(), progress)?;
        watch.drop_network(model.network, device);
        drop(model.input);
        Ok((found, Ran { memory: watch.dropped(), held, continuation, kept, nearness }))
    }

    /// How near a decoder is to the original, of which the head is loaded alone, by what both left.
    fn nearness(
        &self,
        before: Option<&StateFile>,
        network: Option<&Network>,
        kept: Option<&StateFile>,
        progress: ItemProgress,
    ) -> Result<Option<Nearness>> {
        let (Some((checkpoint, arch)), Some(before)) = (self.original, before) else { return Ok(None) };
        let (Some(network), Some(states)) = (network, kept) else { return Ok(None) };
        let Request { fits, device, offload, .. } = self.request;
        // Block by block, models compute in f32.
        let compute = fits.dtype.filter(|_| offload.is_none()).unwrap_or(FloatDType::F32);
        let Some(head) = exit_of(checkpoint, (arch, checkpoint), device, compute)? else { return Ok(None) };
        let original = HeadAndStates { network: &head, states: before };
        nearness(original, HeadAndStates { network, states }, (device, compute), progress)
    }
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
    how: impl Into<BatchBudget<'a>>,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    run_keeping(model, data, spec, None, how.into(), progress)
}

/// As [`run`]; what the head of a decoder takes is kept where `kept` is given.
fn run_keeping(
    model: &LoadedModel,
    data: &Data,
    spec: &DataSpec,
    kept: Option<&mut StateFile>,
    how: BatchBudget,
    progress: ItemProgress,
) -> Result<RunOutputs> {
    let mut model = model.for_running();
    if let (Some(max_length), Input::Text { .. }) = (spec.max_length, &model.input) {
        model.set_max_length(max_length)?;
    }
    let model = &model;
    match (data, &model.input) {
        (Data::Sentences(sentences), Input::Text { .. }) if model.arch.task() == ModelTask::Encoder => {
            outputs::embed(model, sentences, how, progress).map(RunOutputs::Rows)
        }
        (Data::Document(text), Input::Text { .. }) if model.arch.task() == ModelTask::Decoder => {
            model.tokenizer()?;
            let named =
                |error: Error| if error.kind == ErrorKind::Input { error.at(spec.path.display()) } else { error };
            likelihood(model, text, spec.stride, kept, how, progress).map(RunOutputs::Likelihood).map_err(named)
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
    let metrics = metrics_of(data, found, reference)?;
    let (n_items, n_skipped, latency) = summary(found);
    Ok(Evaluation {
        arch,
        n_items,
        n_skipped,
        batch_size: found.batch_size(),
        reference_batch_size: reference.map(RunOutputs::batch_size),
        metrics,
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
