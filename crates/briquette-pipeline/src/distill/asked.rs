//! A training to do, and where it leaves its report.

use briquette_core::RoleRule;
use briquette_recipe::{DistillStage, Selection};
use std::path::Path;

/// The file in a student's directory that says how it was trained.
pub const REPORT: &str = "distill.json";

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
