//! The stage that trains a student to follow a teacher.

#[cfg(feature = "model")]
use crate::memory;
#[cfg(feature = "model")]
pub use crate::training::check_devices;
#[cfg(feature = "model")]
use crate::training::predicted;
use crate::transform;
use briquette_core::Result;
use briquette_formats::{Checkpoint, TensorInfo};
#[cfg(not(feature = "model"))]
use briquette_recipe::DistillStage;
use briquette_recipe::{Recipe, StageKind, Student, TrainingJob};
use briquette_writer::context::RunOptions;

/// Predicts the tensors of the last student, or of the shrunk or folded model of a recipe, from headers and sizes.
///
/// `None` if the recipe neither trains, shrinks nor folds, or if weights decide the shapes: factors, and global thresholds.
///
/// # Errors
/// - Config: the student of a stage cannot be made from the model.
/// - Input: config.json is damaged.
pub fn student_of(recipe: &Recipe, checkpoint: &Checkpoint) -> Result<Option<Vec<TensorInfo>>> {
    let trainings = || recipe.parts.iter().filter_map(|part| part.then.as_distill());
    let is_same = trainings().all(|stage| stage.student == Student::Same);
    let shrinks = recipe.asked.has(StageKind::Shrink) || recipe.asked.has(StageKind::Fold);
    match () {
        // Training keeps the shapes of the changed model.
        () if shrinks && is_same => transform::predicted(recipe, checkpoint),
        () if shrinks => transform::predicted(recipe, checkpoint).map(|_| None),
        () if trainings().next().is_none() || recipe.asked.has(StageKind::Factorize) => Ok(None),
        () => predicted(trainings(), checkpoint).map(Some),
    }
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
fn predicted<'a>(_stages: impl Iterator<Item = &'a DistillStage>, _original: &Checkpoint) -> Result<Vec<TensorInfo>> {
    Err(cannot())
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
pub fn check_devices(_stage: &DistillStage, _names: &[String]) -> Result<()> {
    Err(cannot())
}

/// Trains, and writes the student with its report, `distill.json`, as an output directory.
///
/// # Errors
/// - Config: student, teacher and data do not match.
/// - Input: one of them is damaged.
/// - Refused: the memory limit is exceeded, or a loss is not finite.
/// - Io: a file cannot be read or written.
/// - Interrupted: a stop was requested.
#[cfg(feature = "model")]
pub fn train(job: &TrainingJob, options: &RunOptions) -> Result<()> {
    if let Some(limit) = job.stage.memory.limit {
        let devices = crate::training::devices(options)?;
        memory::to_train(job.stage, job.model, job.original, &devices[0])?.check(limit)?;
    }
    crate::training::train(job, options)
}

/// Returns an error: this build cannot run models.
///
/// # Errors
/// Config: always.
#[cfg(not(feature = "model"))]
pub fn train(_job: &TrainingJob, _options: &RunOptions) -> Result<()> {
    Err(cannot())
}

#[cfg(not(feature = "model"))]
fn cannot() -> briquette_core::Error {
    briquette_core::Error::lacks_feature("model", "train models")
}
