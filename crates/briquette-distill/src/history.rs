//! What training showed, step by step.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One step of the optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Which, from 1.
    pub step: usize,
    /// In which epoch, from 1.
    pub epoch: usize,
    /// The loss, a mean over its items.
    pub loss: f64,
    /// Each term of the blend before its weight, in its order.
    pub terms: Vec<f64>,
    /// What these are called.
    #[serde(default)]
    pub names: Vec<String>,
    /// The learning rate.
    pub learning_rate: f64,
    /// The length of the gradient before it was clipped; none where the step was skipped, as it overflowed.
    pub grad_norm: Option<f64>,
    /// Items in memory at once.
    pub at_once: usize,
    /// Seconds it took.
    pub seconds: f64,
}

/// The end of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Which, from 1.
    pub epoch: usize,
    /// Steps so far.
    pub step: usize,
    /// The mean loss over the epoch's steps.
    pub loss: f64,
    /// What the evaluation found, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Whether the student is the best so far.
    pub is_best: bool,
}

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryRecord {
    /// A step.
    Step(StepRecord),
    /// The end of an epoch.
    Epoch(EpochRecord),
}

impl HistoryRecord {
    /// The step it belongs to.
    pub fn step(&self) -> usize {
        match self {
            Self::Step(record) => record.step,
            Self::Epoch(record) => record.step,
        }
    }
}
