//! The stage that trains a student to follow a teacher.

#[cfg(feature = "model")]
mod devices;
#[cfg(feature = "model")]
mod examples;
#[cfg(feature = "model")]
mod held;
#[cfg(feature = "model")]
mod learner;
#[cfg(feature = "model")]
mod outcome;
#[cfg(feature = "model")]
mod settings;
#[cfg(feature = "model")]
mod shown;
#[cfg(feature = "model")]
mod student;
#[cfg(feature = "model")]
mod train;
#[cfg(feature = "model")]
mod watch;

use crate::context::RunOptions;
use crate::recipe::{DistillStage, Selection};
use crate::role::RoleRule;
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The file in a student's directory that says how it was trained.
pub const REPORT: &str = "distill.json";

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
    /// The most that it was foretold to use with a whole batch at once, where a limit asked for that.
    pub predicted_peak_bytes: Option<u64>,
    /// Seconds of steps, those before a kill too.
    pub seconds: f64,
    /// Seconds in all, with loading and evaluation; of what was before a kill, the steps alone.
    #[serde(default)]
    pub wall_seconds: f64,
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

/// A training to do.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What to do.
    pub stage: &'a DistillStage,
    /// What was pruned before: those weights stay zero.
    pub pruned: &'a [&'a Selection],
    /// What tensors are, where our own reading of names is wrong.
    pub roles: &'a [RoleRule],
    /// The recipe's model: the teacher, unless the stage names another.
    pub original: &'a Path,
    /// The model as the stages before left it.
    pub model: &'a Path,
    /// The directory to write.
    pub output: &'a Path,
    /// Where checkpoints and metrics are kept meanwhile.
    pub work: &'a Path,
}

/// Whether anything that goes down compares the student with a teacher.
///
/// # Errors
/// Config, where its losses cannot be.
#[cfg(feature = "model")]
pub(crate) fn needs_teacher(stage: &DistillStage) -> Result<bool> {
    settings::of(stage).map(|settings| settings.blend.needs_teacher())
}

/// The tensors of what trainings make of a model, in order: known by headers and sizes, and so is what cannot be.
///
/// # Errors
/// Config where a stage's student cannot be made of the model; Input where its config.json is damaged.
#[cfg(feature = "model")]
pub(crate) fn foretold<'a>(
    stages: impl Iterator<Item = &'a DistillStage>,
    original: &Checkpoint,
) -> Result<Vec<TensorInfo>> {
    student::foretold(stages, original)
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub(crate) fn foretold<'a>(
    _stages: impl Iterator<Item = &'a DistillStage>,
    _original: &Checkpoint,
) -> Result<Vec<TensorInfo>> {
    Err(cannot())
}

/// Refuses devices that cannot train together, and what is not done on several of them.
///
/// # Errors
/// Config, naming the device or the key.
#[cfg(feature = "model")]
pub fn check_devices(stage: &DistillStage, names: &[String]) -> Result<()> {
    if names.is_empty() || devices::of(names)?.len() == 1 { Ok(()) } else { devices::check(stage) }
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub fn check_devices(_stage: &DistillStage, _names: &[String]) -> Result<()> {
    Err(cannot())
}

/// Trains, and writes the student with its report, `distill.json`, as an output directory.
///
/// # Errors
/// Config where student, teacher and data do not go together; Input where one is damaged; Refused over the memory limit or
/// where a loss is no number; Io; Interrupted.
#[cfg(feature = "model")]
pub fn train(asked: &Asked, options: &RunOptions) -> Result<()> {
    train::train(asked, options)
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub fn train(_asked: &Asked, _options: &RunOptions) -> Result<()> {
    Err(cannot())
}

#[cfg(not(feature = "model"))]
fn cannot() -> briquette_core::Error {
    briquette_core::Error::config("this build cannot train models; build it with the feature model")
}
