//! A training on the steps of a budget: they are found by rounding the model as it is, the student begins with what that gives and learns on those
//! steps, and is rounded to them again.

use super::work::Work;
use crate::budget;
use crate::compress::compress;
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, OutputFormat, TensorSource, json, limits};
use briquette_recipe::{GivenScheme, Recipe, Target};
use briquette_report::{AllocationReport, Origin, Report};
use briquette_writer::RunOptions;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What comes before such a training.
pub(super) struct FoundSteps {
    /// The recipe with its steps found, which rounds to the nearest.
    pub(super) recipe: Recipe,
    /// The model rounded to them.
    pub(super) model: PathBuf,
    pub(super) allocation: AllocationReport,
    /// What the weight files may have.
    pub(super) most: u64,
}

impl FoundSteps {
    /// Rounds the model within the budget, where a training learns with that in place; none where none does.
    ///
    /// # Errors
    /// Those of a run.
    pub(super) fn of(recipe: &Recipe, work: &Work, options: &RunOptions) -> Result<Option<Self>> {
        let Some(asked) = recipe.budget.as_ref().filter(|_| recipe.learns_steps()) else { return Ok(None) };
        let model = work.part(0, "compress");
        if !work.is_done(&model, options)? {
            let first = Recipe {
                output: model.clone(),
                parts: Vec::new(),
                evaluate: None,
                profile: OutputFormat::Briquette,
                ..recipe.clone()
            };
            compress(&first, options, &Origin::of(&first), Some(&work.part(0, Work::SOLVED)))?;
        }
        let path = model.join("report.json");
        let report: Report =
            json::parse(&InputFile::open(&path)?.read_all(limits::MAX_OWN_BYTES)?, "the report", &path)?;
        let allocation = report.allocation.ok_or_else(|| Error::bug("a budget without steps"))?;
        let most = match asked.target {
            Target::Bytes(bytes) => bytes,
            _ => Checkpoint::open(&model)?.weight_bytes(),
        };
        let recipe = recipe.with_schemes(&given(&allocation, 1.0)?)?.to_nearest();
        Ok(Some(Self { recipe, model, allocation, most }))
    }

    /// The draft of the last stages of the recipe, whose model a training made, and its report: rounded to the steps that it learned on, or, where that takes more bytes, to
    /// slightly larger ones.
    ///
    /// # Errors
    /// Those of a run.
    pub(super) fn draft(&self, last: &Recipe, options: &RunOptions, origin: &Origin) -> Result<(Draft, Report)> {
        // What the network does not have, a training leaves behind: a pooler that nothing runs.
        let trained = Checkpoint::open(&last.model)?;
        let names: BTreeSet<&str> = trained.tensors().iter().map(|info| info.name.as_str()).collect();
        let mut allocation = self.allocation.clone();
        allocation.tensors.retain(|tensor| names.contains(tensor.name.as_str()));
        let n_weights: usize = allocation.tensors.iter().map(|tensor| tensor.n_weights).sum();
        let steps = |factor: f64| Ok(last.with_schemes(&given(&allocation, factor)?)?.to_nearest());
        let origin = Origin { allocation: Some(allocation.clone()), ..origin.clone() };
        budget::within(self.most, n_weights, &steps, options, &origin)
    }
}

/// The scheme of each tensor, with its step times a factor.
fn given(allocation: &AllocationReport, factor: f64) -> Result<Vec<GivenScheme>> {
    let each = allocation.tensors.iter().map(|tensor| {
        let scheme = briquette_methods::quant::scaled_step(&tensor.scheme, factor)
            .ok_or_else(|| Error::bug(format!("{} is no step", tensor.scheme)))?;
        Ok(GivenScheme { name: tensor.name.clone(), scheme, is_idle: false })
    });
    each.collect()
}
