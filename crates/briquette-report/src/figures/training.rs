//! How a student was trained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a training showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DistillReport {
    /// What the student is, in words.
    pub student: String,
    /// Layers that a student of fewer has, and of how many.
    #[serde(default)]
    pub layers: Option<LayersKept>,
    /// The teacher's path; none where there was only data to learn from.
    pub teacher: Option<String>,
    /// What went down, with weights, in words.
    pub losses: Vec<String>,
    /// Items trained on.
    pub n_items: usize,
    /// Steps made.
    pub n_steps: usize,
    /// Items of a step.
    pub batch_size: usize,
    /// Items in memory at once, at the end.
    pub at_once: usize,
    /// Weights of the student.
    pub n_weights: usize,
    /// The loss by step, means over neighbours where there are many.
    pub curve: Vec<CurvePoint>,
    /// The ends of epochs.
    pub epochs: Vec<EpochPoint>,
    /// The data that they were measured on.
    #[serde(default)]
    pub epochs_on: Option<String>,
    /// The epoch that was kept, where a metric chose it.
    pub best_epoch: Option<usize>,
    /// That metric.
    #[serde(default)]
    pub chosen_by: Option<String>,
    /// The most memory it used above what was there before: measured.
    pub peak_bytes: Option<u64>,
    /// The meter of `peak_bytes`.
    pub peak_meter: String,
    /// The most that it was predicted to use with a whole batch at once, where a limit asked for that.
    pub predicted_peak_bytes: Option<u64>,
    /// Seconds of steps, those before a kill too.
    pub seconds: f64,
    /// Seconds in all, with loading and evaluation; of what was before a kill, the steps alone.
    #[serde(default)]
    pub wall_seconds: f64,
}

impl DistillReport {
    /// The file in a student's directory that says how it was trained.
    pub const FILE: &str = "distill.json";
}

/// The layers of a student of fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayersKept {
    /// Layers it has.
    pub n: usize,
    /// Layers of the model that they come from.
    pub of: usize,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// The last of its steps.
    pub step: usize,
    /// Their mean loss.
    pub loss: f64,
}

/// The end of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpochPoint {
    /// Which, from 1.
    pub epoch: usize,
    /// Steps so far.
    pub step: usize,
    /// The mean loss over its steps.
    #[serde(default)]
    pub loss: Option<f64>,
    /// What the evaluation found.
    pub metrics: BTreeMap<String, f64>,
}
