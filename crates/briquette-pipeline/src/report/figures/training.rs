//! The results of a training.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The results of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DistillReport {
    /// The student, as text.
    pub student: String,
    /// The number of layers of a student with fewer layers, and of the original.
    #[serde(default)]
    pub layers: Option<LayersKept>,
    /// The path of the teacher; none if the student learned from data only.
    pub teacher: Option<String>,
    /// The losses with their weights, as text.
    pub losses: Vec<String>,
    /// Number of training items.
    pub n_items: usize,
    /// Number of steps.
    pub n_steps: usize,
    /// Items per step.
    pub batch_size: usize,
    /// Items in memory at the same time, at the end.
    pub at_once: usize,
    /// Number of weights of the student.
    pub n_weights: usize,
    /// The loss by step; the mean over neighbouring steps if there are many.
    pub curve: Vec<CurvePoint>,
    /// The results after each epoch.
    pub epochs: Vec<EpochPoint>,
    /// The data of the epochs' metrics.
    #[serde(default)]
    pub epochs_on: Option<String>,
    /// The kept epoch, if a metric chose it.
    pub best_epoch: Option<usize>,
    /// The metric that chose the epoch.
    #[serde(default)]
    pub chosen_by: Option<String>,
    /// Measured peak memory in bytes, minus the use before the training.
    pub peak_bytes: Option<u64>,
    /// The meter of `peak_bytes`.
    pub peak_meter: String,
    /// Predicted peak memory with a whole batch in memory, if there was a limit.
    pub predicted_peak_bytes: Option<u64>,
    /// Seconds of all steps, including those before a kill.
    pub seconds: f64,
    /// Seconds of the whole training, with loading and evaluation; of the time before a kill, only the steps.
    #[serde(default)]
    pub wall_seconds: f64,
}

impl DistillReport {
    /// The file in a student's directory with this report.
    pub const FILE: &str = "distill.json";
}

/// The number of layers of a smaller student.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayersKept {
    /// Layers of the student.
    pub n: usize,
    /// Layers of the original.
    pub of: usize,
}

/// A point of a loss curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// The last step of the point.
    pub step: usize,
    /// The mean loss of its steps.
    pub loss: f64,
}

/// The results after an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpochPoint {
    /// The number of the epoch, from 1.
    pub epoch: usize,
    /// Number of steps so far.
    pub step: usize,
    /// The mean loss over the steps of the epoch.
    #[serde(default)]
    pub loss: Option<f64>,
    /// The metrics of the evaluation.
    pub metrics: BTreeMap<String, f64>,
}
