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

pub use asked::{Asked, REPORT};
use briquette_core::Result;
use briquette_flow::context::RunOptions;
use briquette_formats::{Checkpoint, TensorInfo};
use briquette_recipe::{DistillStage, Recipe, Whole};

/// The tensors of what the last stages work on, where a recipe trains it: those of its last student, by headers and sizes. None where
/// it does not, or makes factors, which are not foretold.
///
/// # Errors
/// Config where a stage's student cannot be made of the model; Input where its config.json is damaged.
pub fn student_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Vec<TensorInfo>>> {
    let has_factors = recipe.parts.iter().any(|part| matches!(part.then, Whole::Factorize(_)));
    let trainings = || recipe.parts.iter().filter_map(|part| part.then.as_distill());
    if trainings().next().is_none() || has_factors {
        return Ok(None);
    }
    foretold(trainings(), checkpoint).map(Some)
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
