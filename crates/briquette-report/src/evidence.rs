//! The input of a report about a run of file stages.

use super::figures::{EvaluationReport, SolvedLayer};
use super::origin::Origin;
use briquette_formats::Checkpoint;
use briquette_recipe::Recipe;
use briquette_writer::Plan;
use briquette_writer::decode::DecodedTensor;
use briquette_writer::encode::Outcome;
use briquette_writer::layout::FileLayouts;
use briquette_writer::plan::Prediction;
use std::collections::BTreeMap;
use std::time::Instant;

/// The recipe, the plan and the results of a run, from which its report is made.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// The origin of the model.
    pub origin: &'a Origin,
    /// The model that the stages read.
    pub checkpoint: &'a Checkpoint,
    /// The plan.
    pub plan: &'a Plan<'a>,
    /// The positions of tensors in the files.
    pub layout: &'a FileLayouts,
    /// The results of weight updates, by tensor index.
    pub solved: &'a BTreeMap<usize, SolvedLayer>,
    /// The results of encoding.
    pub outcomes: &'a [Outcome],
    /// The values read back, ordered by name.
    pub found: &'a [DecodedTensor],
    /// The draft, open for reading.
    pub written: &'a Checkpoint,
    /// The predicted size.
    pub prediction: Prediction,
    /// The results of the evaluation.
    pub evaluation: Option<EvaluationReport>,
}

/// Seconds of each finished phase.
#[derive(Debug, Clone, Default)]
pub struct Timing(pub(super) Vec<(String, f64)>);

impl Timing {
    /// Records the duration of a phase that began at `since`.
    pub fn mark(&mut self, phase: &str, since: Instant) {
        self.0.push((phase.to_string(), since.elapsed().as_secs_f64()));
    }
}
