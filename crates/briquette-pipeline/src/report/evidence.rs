//! The input of a report about a run of file stages.

use super::figures::{EvaluationReport, SolvedLayer};
use super::origin::Origin;
use briquette_core::ErrorStats;
use briquette_formats::{Checkpoint, StoredDir};
use briquette_recipe::Recipe;
use briquette_writer::Plan;
use briquette_writer::encode::OutputError;
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
    /// The errors of the dequantized values, by tensor index.
    pub stats: &'a [ErrorStats],
    /// The errors of the layers' outputs whose inputs are known, by tensor index.
    pub outputs: &'a BTreeMap<usize, OutputError>,
    /// The zeros that were read back, by tensor index.
    pub n_zeros: &'a [u64],
    /// The tensors of [`worst_tensors`](crate::report::worst_tensors) in the draft, open for reading.
    pub written: &'a StoredDir,
    /// The predicted size.
    pub prediction: Prediction,
    /// The results of the evaluation.
    pub evaluation: Option<EvaluationReport>,
}

impl Evidence<'_> {
    /// Returns the size of the weight files in bytes.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written.files.iter().map(|file| file.len()).sum()
    }
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
