//! The history of a training, step by step.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One step of the optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, from 1.
    pub step: usize,
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean loss over the items.
    pub loss: f64,
    /// Each unweighted term of the blend, in order.
    pub terms: Vec<f64>,
    /// The names of the terms.
    #[serde(default)]
    pub names: Vec<String>,
    /// The learning rate.
    pub learning_rate: f64,
    /// The gradient norm before clipping; `None` if the step was skipped because of an overflow.
    pub grad_norm: Option<f64>,
    /// The number of items in memory at once.
    pub at_once: usize,
    /// The duration in seconds.
    pub seconds: f64,
}

/// The end of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The number of steps so far.
    pub step: usize,
    /// The mean loss of the epoch's steps.
    pub loss: f64,
    /// The metrics of the evaluation, by name.
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
    /// Returns the step of the record.
    pub fn step(&self) -> usize {
        match self {
            Self::Step(record) => record.step,
            Self::Epoch(record) => record.step,
        }
    }
}
