//! What a run of file stages hands over for its report.

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

/// What was asked, planned and found in a run: all that its report is made of.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// What was asked.
    pub recipe: &'a Recipe,
    /// Where the model comes from.
    pub origin: &'a Origin,
    /// The model that the stages read.
    pub checkpoint: &'a Checkpoint,
    /// What was planned.
    pub plan: &'a Plan<'a>,
    /// Where it was put.
    pub layout: &'a FileLayouts,
    /// How moving weights went, by the index of the tensor.
    pub solved: &'a BTreeMap<usize, SolvedLayer>,
    /// What encoding showed.
    pub outcomes: &'a [Outcome],
    /// What was read back, by the order of names.
    pub found: &'a [DecodedTensor],
    /// The draft, open for reading.
    pub written: &'a Checkpoint,
    /// What was predicted.
    pub prediction: Prediction,
    /// What running it showed.
    pub evaluation: Option<EvaluationReport>,
}

/// Seconds of each phase so far.
#[derive(Debug, Clone, Default)]
pub struct Timing(pub(super) Vec<(String, f64)>);

impl Timing {
    /// A phase that began at `since` is over.
    pub fn mark(&mut self, phase: &str, since: Instant) {
        self.0.push((phase.to_string(), since.elapsed().as_secs_f64()));
    }
}
