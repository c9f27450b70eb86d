//! What a model loses where some of its weights are others: the same items through the model as it is, and through it with those.

use crate::layerwise::{Room, exit_of, run_keeping_states};
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
use briquette_models::{Arch, ModelTask, Network};
use burn::tensor::{Device, FloatDType};

/// The loss below which nothing happened but rounding in f32.
const LEAST: f64 = 1e-10;

/// What a loss is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossMeasure {
    /// One less the mean cosine of outputs.
    Cosine,
    /// The Kullback-Leibler divergence from what the model as it is expects of the next token or the class, in nats.
    Kl,
    /// What the task's metric becomes worse by: accuracy, the correlation with what people say of pairs, or, of a text, the logarithm of perplexity.
    Metric,
}

impl LossMeasure {
    /// What gradients predict too.
    pub fn of(task: ModelTask) -> Self {
        match task {
            ModelTask::Encoder => Self::Cosine,
            ModelTask::Decoder | ModelTask::Classifier => Self::Kl,
        }
    }

    /// Refuses what a model of this task does not have on this data.
    ///
    /// # Errors
    /// Config.
    pub fn check(self, task: ModelTask, data: &Data) -> Result<()> {
        let has_metric = match data {
            Data::Document(_) => true,
            Data::Sentences(sentences) => !sentences.pairs.is_empty(),
            Data::Images(images) => images.label(0).is_some(),
        };
        let message = match (self, task) {
            (Self::Cosine, ModelTask::Decoder) => "a decoder has no one output for a text; take \"kl\" or \"metric\"",
            (Self::Kl, ModelTask::Encoder) => "an encoder expects no classes; take \"cosine\" or \"metric\"",
            (Self::Metric, ModelTask::Encoder) if !has_metric => {
                "the data has no pairs with a score, and so no metric; give such pairs, or take \"cosine\""
            }
            (Self::Metric, _) if !has_metric => "the data has no labels, and so no metric; give labels, or take \"kl\"",
            _ => return Ok(()),
        };
        Err(Error::config(message))
    }
}

/// A model, and the data that it runs on.
#[derive(Clone, Copy)]
pub struct ModelOnData<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// What it is.
    pub arch: Arch,
    /// Where it runs.
    pub device: &'a Device,
    /// The data, and how it is read.
    pub over: (&'a Data, &'a DataSpec),
    /// Which items run.
    pub samples: Samples,
    /// Where what lies between blocks is.
    pub room: Room<'a>,
}

/// What a change costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangeCost {
    /// What is lost; below 0 where a metric became better.
    pub loss: f64,
    /// Whether outputs are others.
    pub is_seen: bool,
}

/// What a run leaves behind.
struct Passed {
    outputs: RunOutputs,
    /// What the head of a decoder took, and the head, where it is looked at.
    states: Option<(StateFile, Network)>,
}

/// A model as it is, and what it put out.
pub struct Baseline<'a> {
    of: ModelOnData<'a>,
    by: LossMeasure,
    passed: Passed,
}

impl<'a> Baseline<'a> {
    /// Runs the model as it is. A model of text goes block by block, with the weights of one block in memory at a time.
    ///
    /// # Errors
    /// Those of [`LossMeasure::check`] and of running.
    pub fn run(of: ModelOnData<'a>, by: LossMeasure, progress: ItemProgress) -> Result<Self> {
        by.check(of.arch.task(), of.over.0)?;
        Ok(Self { of, by, passed: pass(of, by, of.checkpoint, progress)? })
    }

    /// What losses are counted in.
    ///
    /// # Errors
    /// Config where there is no metric.
    pub fn unit(&self) -> Result<&'static str> {
        match self.by {
            LossMeasure::Cosine => Ok("1 - cosine"),
            LossMeasure::Kl => Ok("nats"),
            LossMeasure::Metric => Ok(self.metric(&self.passed)?.0),
        }
    }

    /// What the model loses with the weights that a source has for the tensors of its checkpoint.
    ///
    /// # Errors
    /// Those of running.
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

    /// The task's metric, as a loss, and what that is counted in.
    fn metric(&self, passed: &Passed) -> Result<(&'static str, f64)> {
        let found = metrics_of(self.of.over.0, &passed.outputs, None)?;
        loss_of_metrics(&found).ok_or_else(|| Error::config("the items that ran have no metric; run more of them"))
    }

    fn divergence(&self, found: &Passed, progress: ItemProgress) -> Result<f64> {
        if let (RunOutputs::Rows(original), RunOutputs::Rows(found)) = (&self.passed.outputs, &found.outputs) {
            return Ok(metrics::kl(&original.values, &found.values, original.width));
        }
        let pair = self.passed.states.as_ref().zip(found.states.as_ref());
        let ((of_original, original), (of_changed, changed)) =
            pair.ok_or_else(|| Error::bug("a decoder without states"))?;
        let found = nearness(
            HeadAndStates { network: original, states: of_original },
            HeadAndStates { network: changed, states: of_changed },
            (self.of.device, FloatDType::F32),
            progress,
        )?;
        found.map(|found| found.kl).ok_or_else(|| Error::bug("other windows of the same text"))
    }
}

/// One run of a model with some weights.
fn pass(of: ModelOnData, by: LossMeasure, weights: &dyn TensorSource, progress: ItemProgress) -> Result<Passed> {
    let ModelOnData { checkpoint, arch, device, over, samples, room } = of;
    if arch.task() == ModelTask::Classifier {
        let rows = images::classify_with(checkpoint, (arch, weights), device, over, samples, progress)?;
        return Ok(Passed { outputs: RunOutputs::Rows(rows), states: None });
    }
    let keeps = by == LossMeasure::Kl;
    let mut kept = keeps.then(|| StateFile::create_in(room.directory)).transpose()?;
    let how = (room, kept.as_mut());
    let outputs = run_keeping_states(checkpoint, (arch, weights), device, over, samples, how, progress)?;
    let head = keeps.then(|| exit_of(checkpoint, (arch, weights), device, FloatDType::F32)).transpose()?.flatten();
    Ok(Passed { outputs, states: kept.zip(head) })
}

/// How far outputs are apart: one less the mean cosine of rows, or the nats a token.
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
