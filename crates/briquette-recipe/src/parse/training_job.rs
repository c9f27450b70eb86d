//! A training to do.

use crate::parse::distill::DistillStage;
use crate::parse::selection::Selection;
use briquette_core::RoleRule;
use std::path::Path;

/// A training to do, as a stage of a recipe asks for it.
#[derive(Debug, Clone, Copy)]
pub struct TrainingJob<'a> {
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
