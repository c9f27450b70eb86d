//! The stage that trains a student to follow a teacher.

#[cfg(feature = "model")]
use crate::memory;
#[cfg(feature = "model")]
pub use crate::training::check_devices;
#[cfg(feature = "model")]
use crate::training::predicted;
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo};
#[cfg(not(feature = "model"))]
use briquette_recipe::DistillStage;
use briquette_recipe::{ModelStage, Recipe, TrainingJob};
use briquette_writer::context::RunOptions;

/// The tensors of what the last stages work on, where a recipe trains it: those of its last student, by headers and sizes. None where
/// it does not, or makes factors, which are not predicted.
///
/// # Errors
/// Config where a stage's student cannot be made of the model; Input where its config.json is damaged.
pub fn student_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Vec<TensorInfo>>> {
    let has_factors = recipe.parts.iter().any(|part| matches!(part.then, ModelStage::Factorize(_)));
    let trainings = || recipe.parts.iter().filter_map(|part| part.then.as_distill());
    if trainings().next().is_none() || has_factors {
        return Ok(None);
    }
    predicted(trainings(), checkpoint).map(Some)
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
fn predicted<'a>(_stages: impl Iterator<Item = &'a DistillStage>, _original: &Checkpoint) -> Result<Vec<TensorInfo>> {
    Err(cannot())
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
pub fn train(asked: &TrainingJob, options: &RunOptions) -> Result<()> {
    if let Some(limit) = asked.stage.memory.limit {
        let devices = crate::training::devices(options)?;
        memory::to_train(asked.stage, asked.model, asked.original, &devices[0])?.check(limit)?;
    }
    crate::training::train(asked, options)
}

/// This build cannot run models.
///
/// # Errors
/// Config, always.
#[cfg(not(feature = "model"))]
pub fn train(_asked: &TrainingJob, _options: &RunOptions) -> Result<()> {
    Err(cannot())
}

#[cfg(not(feature = "model"))]
fn cannot() -> briquette_core::Error {
    briquette_core::Error::lacks_feature("model", "train models")
}
