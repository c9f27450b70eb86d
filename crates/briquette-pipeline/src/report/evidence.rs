//! What a run of file stages hands over for its report.

use super::figures::EvaluationReport;
use super::origin::Origin;
use crate::encode::Outcome;
use crate::layout::Layout;
use crate::plan::{Plan, Prediction};
use crate::recipe::Recipe;
use crate::verify::Found;
use briquette_formats::Checkpoint;
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
    pub layout: &'a Layout,
    /// What encoding showed.
    pub outcomes: &'a [Outcome],
    /// What was read back, by the order of names.
    pub found: &'a [Found],
    /// The draft, open for reading.
    pub written: &'a Checkpoint,
    /// What was foretold.
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
