//! The input of a training.

use crate::parse::calibration::CalibrationRun;
use crate::parse::distill::DistillStage;
use crate::parse::selection::Selection;
use briquette_core::RoleRule;
use std::path::Path;

/// The input of a training: its stage, its models and its directories.
#[derive(Debug, Clone, Copy)]
pub struct TrainingJob<'a> {
    /// The distill stage.
    pub stage: &'a DistillStage,
    /// Selections that were pruned before; their zeros stay zero.
    pub pruned: &'a [&'a Selection],
    /// Roles of tensors that are detected wrongly.
    pub roles: &'a [RoleRule],
    /// The calibration run, which finds the ranges of static activations.
    pub calibration: Option<&'a CalibrationRun>,
    /// The recipe's model, which is the teacher unless the stage sets another.
    pub original: &'a Path,
    /// The model that the earlier stages produced.
    pub model: &'a Path,
    /// The directory to write.
    pub output: &'a Path,
    /// The directory of checkpoints and metrics during the run.
    pub work: &'a Path,
}
