//! Training with the step sizes of a budget.
//!
//! The step sizes are found by rounding the original model. The student starts from the rounded model, trains
//! with these step sizes, and is rounded to them again.

use super::parts::read_report;
use super::work::Work;
use crate::budget;
use crate::compress::compress;
use crate::distill::student_of;
use crate::report::{AllocationReport, Origin, Report};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Draft, OutputFormat, TensorSource};
use briquette_recipe::{Budget, GivenScheme, Recipe, Target};
use briquette_writer::RunOptions;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The rounding before such a training.
pub(super) struct FoundSteps {
    /// The recipe with the step sizes that were found, rounding to nearest.
    pub(super) recipe: Recipe,
    /// The model rounded to them.
    pub(super) model: PathBuf,
    pub(super) allocation: AllocationReport,
    /// The limit of the weight files in bytes.
    pub(super) most: u64,
}

impl FoundSteps {
    /// Rounds the model within the budget, if a training uses the step sizes. Otherwise returns `None`.
    ///
    /// # Errors
    /// See [`run()`](crate::run()).
    pub(super) fn of(recipe: &Recipe, work: &Work, options: &RunOptions) -> Result<Option<Self>> {
        let Some(requested) = recipe.budget.as_ref().filter(|_| recipe.learns_steps()) else { return Ok(None) };
        let model = work.part(0, "compress");
        if !work.is_done(&model, options)? {
            let budget = Some(Budget { dropped: dropped(recipe)?, ..requested.clone() });
            let first = Recipe {
                output: model.clone(),
                parts: Vec::new(),
                evaluate: None,
                profile: OutputFormat::Briquette,
                budget,
                ..recipe.clone()
            };
            compress(&first, options, &Origin::of(&first), Some(&work.part(0, Work::SOLVED)))?;
        }
        let report: Report = read_report(&model.join("report.json"))?;
        let allocation = report.allocation.ok_or_else(|| Error::bug("a budget without an allocation"))?;
        let most = match requested.target {
            Target::Bytes(bytes) => bytes,
            Target::Bits(_) | Target::Metrics(_) => match allocation.most_bytes {
                Some(most) => most,
                None => Checkpoint::open(&model)?.weight_bytes(),
            },
        };
        let recipe = recipe.with_schemes(&given(&allocation, 1.0)?)?.to_nearest();
        Ok(Some(Self { recipe, model, allocation, most }))
    }

    /// Returns the draft of the last stages for a trained model, and its report.
    ///
    /// The model is rounded to the step sizes of the training, or to slightly larger ones if that exceeds the
    /// budget. Codes with larger steps are chosen as the recipe says, such as by GPTQ; `scratch` is for its results.
    ///
    /// # Errors
    /// See [`run()`](crate::run()).
    pub(super) fn draft(
        &self,
        last: &Recipe,
        options: &RunOptions,
        origin: &Origin,
        scratch: &Path,
    ) -> Result<(Draft, Report)> {
        // A training drops tensors that the network lacks, such as an unused pooler.
        let trained = Checkpoint::open(&last.model)?;
        let names: BTreeSet<&str> = trained.tensors().iter().map(|info| info.name.as_str()).collect();
        let mut allocation = self.allocation.clone();
        allocation.tensors.retain(|tensor| names.contains(tensor.name.as_str()));
        let n_weights: usize = allocation.tensors.iter().map(|tensor| tensor.n_weights).sum();
        let steps = |factor: f64| {
            let chosen = last.with_schemes(&given(&allocation, factor)?)?;
            // Trained weights are on the steps of the training, so those of larger steps are not simply the nearest.
            Ok(if factor > 1.0 { chosen } else { chosen.to_nearest() })
        };
        let rounded = Some(self.model.clone());
        let origin = Origin { allocation: Some(allocation.clone()), rounded, ..origin.clone() };
        budget::within(self.most, n_weights, &steps, options, (&origin, scratch))
    }
}

/// Returns the names of the tensors that the network of a training lacks, such as an unused pooler.
fn dropped(recipe: &Recipe) -> Result<BTreeSet<String>> {
    let checkpoint = crate::open::model(recipe)?;
    let Some(student) = student_of(recipe, &checkpoint)? else { return Ok(BTreeSet::new()) };
    let kept: BTreeSet<&str> = student.iter().map(|info| &*info.name).collect();
    let names = checkpoint.tensors().iter().map(|info| info.name.to_string());
    Ok(names.filter(|name| !kept.contains(name.as_str())).collect())
}

/// Returns the scheme of each tensor, with its step size multiplied by a factor. Steps by frequency stay: a training does not change
/// such a tensor, and its codes are kept.
fn given(allocation: &AllocationReport, factor: f64) -> Result<Vec<GivenScheme>> {
    let each = allocation.tensors.iter().map(|tensor| {
        let factor = if tensor.scheme.contains("-frequency") { 1.0 } else { factor };
        let scheme = briquette_methods::quant::scaled_step(&tensor.scheme, factor)
            .ok_or_else(|| Error::bug(format!("{} is not a step scheme", tensor.scheme)))?;
        Ok(GivenScheme { name: tensor.name.clone(), scheme, is_idle: false })
    });
    each.collect()
}
