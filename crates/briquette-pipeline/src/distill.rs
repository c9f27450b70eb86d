//! The stage that trains a student to follow a teacher.

mod asked;
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
pub(crate) mod settings;
#[cfg(feature = "model")]
mod setup;
#[cfg(feature = "model")]
mod shown;
#[cfg(feature = "model")]
mod student;
#[cfg(feature = "model")]
mod train;
#[cfg(feature = "model")]
mod watch;

use crate::context::RunOptions;
use crate::recipe::DistillStage;
pub use asked::{Asked, REPORT};
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo};

/// Refuses a stage that cannot be: what is wrong with losses and training shows before any work.
///
/// # Errors
/// Config, naming the key.
#[cfg(feature = "model")]
pub fn check(stage: &DistillStage) -> Result<()> {
    settings::of(stage).map(drop)
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

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub fn check(_stage: &DistillStage) -> Result<()> {
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
