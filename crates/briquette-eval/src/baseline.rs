//! Measures the loss of a network after replacing some of its weights.
//!
//! The same items run through both versions.

use crate::layerwise::{OffloadedOutputs, Room, exit_of, run_keeping_states};
use crate::metrics;
use crate::nearness::{HeadAndStates, nearness};
use crate::outputs::{ItemProgress, OutputRows};
use crate::quality::{loss_of_metrics, metrics_of};
use crate::run_outputs::RunOutputs;
use crate::samples::Samples;
use crate::state_file::StateFile;
use crate::{images, likelihood::Likelihood};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_models::data::{Data, DataSpec};
use briquette_models::{Arch, GraphNet, ModelTask};
use burn::tensor::{Device, FloatDType};

/// A loss below this is f32 rounding.
const LEAST: f64 = 1e-10;

/// How the loss of a change is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossMeasure {
    /// One minus the mean cosine between the outputs of both models.
    Cosine,
    /// The Kullback-Leibler divergence from the original model's next-token or class distribution, in nats.
    Kl,
    /// The decrease of the task's metric: accuracy, `sts_spearman`, or the increase of log perplexity.
    Metric,
}

impl LossMeasure {
    /// Returns the measure that gradients predict too.
    pub fn of(task: ModelTask) -> Self {
        match task {
            ModelTask::Encoder => Self::Cosine,
            ModelTask::Decoder | ModelTask::EncoderDecoder | ModelTask::Classifier => Self::Kl,
        }
    }

    /// Checks that models of this task have this measure on this data.
    ///
    /// # Errors
    /// Config: the measure does not exist for this task or data.
    pub fn check(self, task: ModelTask, data: &Data) -> Result<()> {
        let has_metric = match data {
            Data::Document(_) | Data::Pairs(_) => true,
            Data::Sentences(sentences) => !sentences.pairs.is_empty(),
            Data::Images(images) => images.label(0).is_some(),
        };
        let message = match (self, task) {
            (Self::Cosine, ModelTask::Decoder | ModelTask::EncoderDecoder) => {
                "a decoder has no single output per text; use \"kl\" or \"metric\""
            }
            (Self::Kl, ModelTask::Encoder) => "an encoder has no classes; use \"cosine\" or \"metric\"",
            (Self::Metric, ModelTask::Encoder) if !has_metric => {
                "the data has no pairs with a score, so it has no metric; add scored pairs, or use \"cosine\""
            }
            (Self::Metric, _) if !has_metric => {
                "the data has no labels, so it has no metric; add labels, or use \"kl\""
            }
            _ => return Ok(()),
        };
        Err(Error::config(message))
    }
}

/// A model and the data to run it on.
#[derive(Clone, Copy)]
pub struct ModelOnData<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// The architecture.
    pub arch: Arch,
    /// The device to run on.
    pub device: &'a Device,
    /// The data and its settings.
    pub over: (&'a Data, &'a DataSpec),
    /// The items to run.
    pub samples: Samples,
    /// The memory and directory for hidden states between blocks.
    pub room: Room<'a>,
}

/// The cost of a change to the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangeCost {
    /// The loss; negative if a metric improved.
    pub loss: f64,
    /// Whether the outputs changed.
    pub is_seen: bool,
}

/// The results of a run.
struct Passed {
    outputs: RunOutputs,
    /// The head's inputs and the head of a decoder, if the measure needs them.
    states: Option<(StateFile, GraphNet)>,
}

/// The original model and its outputs.
pub struct Baseline<'a> {
    of: ModelOnData<'a>,
    by: LossMeasure,
    passed: Passed,
}

impl<'a> Baseline<'a> {
    /// Runs the original model.
    ///
    /// A text model runs block by block, with the weights of one block in memory at a time.
    ///
    /// # Errors
    /// - See [`LossMeasure::check`].
    /// - Input: no item can be used.
    /// - Refused: outputs are not finite, or the memory limit is exceeded.
    /// - Io: a tensor cannot be read, or hidden states cannot be stored.
    pub fn run(of: ModelOnData<'a>, by: LossMeasure, progress: ItemProgress) -> Result<Self> {
        by.check(of.arch.task(), of.over.0)?;
        Ok(Self { of, by, passed: pass(of, by, of.checkpoint, progress)? })
    }

    /// Returns the unit of the losses.
    ///
    /// # Errors
    /// Config: the data has no metric.
    pub fn unit(&self) -> Result<&'static str> {
        match self.by {
            LossMeasure::Cosine => Ok("1 - cosine"),
            LossMeasure::Kl => Ok("nats"),
            LossMeasure::Metric => Ok(self.metric(&self.passed)?.0),
        }
    }

    /// Returns the loss of the model with the weights of a source in place of its own.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn cost(&self, weights: &dyn TensorSource, progress: ItemProgress) -> Result<ChangeCost> {
        let found = pass(self.of, self.by, weights, progress)?;
        let distance = distance(&self.passed.outputs, &found.outputs);
        let loss = match self.by {
            LossMeasure::Cosine => distance,
            LossMeasure::Kl => self.divergence(&found, progress)?,
            LossMeasure::Metric => self.metric(&found)?.1 - self.metric(&self.passed)?.1,
        };
        Ok(ChangeCost { loss, is_seen: loss.abs() >= LEAST || distance.abs() >= LEAST })
    }

    /// Returns the task's metric as a loss, with its unit.
    fn metric(&self, passed: &Passed) -> Result<(&'static str, f64)> {
        let found = metrics_of(self.of.over.0, &passed.outputs, None)?;
        loss_of_metrics(&found).ok_or_else(|| Error::config("the items that ran have no metric; run more items"))
    }

    fn divergence(&self, found: &Passed, progress: ItemProgress) -> Result<f64> {
        if let (RunOutputs::Rows(original), RunOutputs::Rows(found)) = (&self.passed.outputs, &found.outputs) {
            return Ok(metrics::kl(&original.values, &found.values, original.width));
        }
        let pair = self.passed.states.as_ref().zip(found.states.as_ref());
        let ((of_original, original), (of_changed, changed)) =
            pair.ok_or_else(|| Error::bug("a decoder without head inputs"))?;
        let found = nearness(
            HeadAndStates { network: original, states: of_original },
            HeadAndStates { network: changed, states: of_changed },
            (self.of.device, FloatDType::F32),
            progress,
        )?;
        found.map(|found| found.kl).ok_or_else(|| Error::bug("the models ran different windows of the text"))
    }
}

/// Runs a model once with the weights of a source.
fn pass(of: ModelOnData, by: LossMeasure, weights: &dyn TensorSource, progress: ItemProgress) -> Result<Passed> {
    let ModelOnData { checkpoint, arch, device, over, samples, room } = of;
    if arch.task() == ModelTask::Classifier {
        let rows = images::classify_with(checkpoint, (arch, weights), device, over, samples, progress)?;
        return Ok(Passed { outputs: RunOutputs::Rows(rows), states: None });
    }
    let keeps = by == LossMeasure::Kl;
    let mut kept = keeps.then(|| StateFile::create_in(room.directory)).transpose()?;
    let how = OffloadedOutputs { room, kept: kept.as_mut(), classes: None, rounds_inputs: false };
    let outputs = run_keeping_states(checkpoint, (arch, weights), device, over, samples, how, progress)?;
    let head = keeps.then(|| exit_of(checkpoint, arch, (weights, false), device, FloatDType::F32)).transpose()?;
    Ok(Passed { outputs, states: kept.zip(head) })
}

/// Returns the distance between outputs: one minus the mean cosine of rows, or the difference in nats per
/// token.
fn distance(original: &RunOutputs, found: &RunOutputs) -> f64 {
    match (original, found) {
        (RunOutputs::Rows(OutputRows { values, width, .. }), RunOutputs::Rows(found)) => {
            let pairs = metrics::rows(values, *width).zip(metrics::rows(&found.values, *width));
            1.0 - metrics::mean(pairs.map(|(a, b)| metrics::cosine(a, b)))
        }
        (RunOutputs::Likelihood(Likelihood { nll, n_tokens, .. }), RunOutputs::Likelihood(found)) => {
            (found.nll - nll) / (*n_tokens).max(1) as f64
        }
        _ => f64::INFINITY,
    }
}
