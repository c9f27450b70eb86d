//! Training with the step sizes of a budget.
//!
//! The step sizes are found by rounding the original model. The student starts from the rounded model, trains
//! with these step sizes, and is rounded to them again.

use super::work::Work;
use crate::budget;
use crate::compress::compress;
use crate::distill::student_of;
use crate::report::{AllocatedTensor, AllocationReport, Origin, Report};
use briquette_core::{Error, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, OutputFormat, TensorSource, json, limits};
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
        let path = model.join("report.json");
        let report: Report =
            json::parse(&InputFile::open(&path)?.read_all(limits::MAX_OWN_BYTES)?, "the report", &path)?;
        let allocation = report.allocation.ok_or_else(|| Error::bug("a budget without an allocation"))?;
        let most = match requested.target {
            Target::Bytes(bytes) => bytes,
            Target::Bits(_) | Target::Metrics(_) => match allocation.most_bytes {
                Some(most) => most,
                None => Checkpoint::open(&model)?.weight_bytes(),
            },
        };
        let recipe = recipe.with_schemes(&given(&allocation, &StepFactors::All(1.0))?)?.to_nearest();
        Ok(Some(Self { recipe, model, allocation, most }))
    }

    /// Returns the draft of the last stages for a trained model, and its report.
    ///
    /// The model is rounded to the step sizes of the training. If that exceeds the budget, one tensor gets a larger step size. If no tensor
    /// alone saves enough, all do, and codes are chosen as the recipe says, such as by GPTQ; `scratch` is for its results.
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
        let steps = |saving: f64| {
            let factors = StepFactors::saving(&allocation, saving);
            let chosen = last.with_schemes(&given(&allocation, &factors)?)?;
            // Trained weights are on the steps of the training, so those of larger steps are not simply the nearest.
            Ok(if matches!(factors, StepFactors::All(factor) if factor > 1.0) { chosen } else { chosen.to_nearest() })
        };
        let rounded = Some(self.model.clone());
        let origin = Origin { allocation: Some(allocation.clone()), rounded, ..origin.clone() };
        budget::within(self.most, &steps, options, (&origin, scratch))
    }
}

/// The factors of the step sizes of an allocation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StepFactors {
    /// One for all tensors.
    All(f64),
    /// One for the tensor of an index.
    One(usize, f64),
}

impl StepFactors {
    /// Returns the factors that save a number of bytes: one bit a weight for each doubling.
    ///
    /// One tensor gets a factor `f` of at most 2, so that its predicted loss `f² · loss` is least: all others keep their trained codes.
    fn saving(allocation: &AllocationReport, bytes: f64) -> Self {
        let factor = |n_weights: usize| (8.0 * bytes / n_weights.max(1) as f64).exp2();
        let tensors = allocation.tensors.iter().enumerate().filter(|(_, tensor)| !is_by_frequency(tensor));
        let fitting = tensors.clone().filter(|(_, tensor)| factor(tensor.n_weights) <= 2.0);
        let cost = |tensor: &AllocatedTensor| factor(tensor.n_weights).powi(2) * tensor.loss;
        match fitting.min_by(|(_, a), (_, b)| cost(a).total_cmp(&cost(b))) {
            Some((at, tensor)) if bytes > 0.0 => Self::One(at, factor(tensor.n_weights)),
            _ => Self::All(factor(tensors.map(|(_, tensor)| tensor.n_weights).sum())),
        }
    }

    fn of(self, index: usize) -> f64 {
        match self {
            Self::All(factor) => factor,
            Self::One(at, factor) if at == index => factor,
            Self::One(..) => 1.0,
        }
    }
}

/// Returns whether each row of a tensor has a step by the frequency of its token. Such a tensor is not trained, and its codes are kept.
fn is_by_frequency(tensor: &AllocatedTensor) -> bool {
    tensor.scheme.contains("-frequency")
}

/// Returns the names of the tensors that the network of a training lacks, such as an unused pooler.
fn dropped(recipe: &Recipe) -> Result<BTreeSet<String>> {
    let checkpoint = crate::open::model(recipe)?;
    let Some(student) = student_of(recipe, &checkpoint)? else { return Ok(BTreeSet::new()) };
    let kept: BTreeSet<&str> = student.iter().map(|info| &*info.name).collect();
    let names = checkpoint.tensors().iter().map(|info| info.name.to_string());
    Ok(names.filter(|name| !kept.contains(name.as_str())).collect())
}

/// Returns the scheme of each tensor, with its step size multiplied by its factor.
fn given(allocation: &AllocationReport, factors: &StepFactors) -> Result<Vec<GivenScheme>> {
    let each = allocation.tensors.iter().enumerate().map(|(index, tensor)| {
        let factor = if is_by_frequency(tensor) { 1.0 } else { factors.of(index) };
        let scheme = briquette_methods::quant::scaled_step(&tensor.scheme, factor)
            .ok_or_else(|| Error::bug(format!("{} is not a step scheme", tensor.scheme)))?;
        Ok(GivenScheme { name: tensor.name.clone(), scheme, is_idle: false })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(tensors: &[(&str, usize, f64)]) -> AllocationReport {
        let tensor = |&(scheme, n_weights, loss): &(&str, usize, f64)| AllocatedTensor {
            name: "t".into(),
            scheme: scheme.into(),
            n_weights,
            bytes: 0.0,
            loss,
            sensitivity: 0.0,
        };
        AllocationReport {
            target: String::new(),
            how: String::new(),
            unit: String::new(),
            most_bytes: None,
            is_finest: false,
            tensors: tensors.iter().map(tensor).collect(),
        }
    }

    #[test]
    fn one_tensor_saves_the_bytes_that_lose_least() {
        let of = allocation(&[
            ("step1-frequency", 1 << 30, 0.0),
            ("step1", 800, 1.0),
            ("step1", 8000, 1.2),
            ("step1", 80, 1e-9),
        ]);
        assert_eq!(StepFactors::saving(&of, 0.0), StepFactors::All(1.0));
        // A doubling of 800 weights saves 100 bytes and has a loss of 4; 8,000 weights lose less with a small factor.
        assert_eq!(StepFactors::saving(&of, 100.0), StepFactors::One(2, 0.1_f64.exp2()));
        assert_eq!(StepFactors::saving(&of, 5.0), StepFactors::One(3, 0.5_f64.exp2()));
        // No tensor alone saves so many.
        assert_eq!(StepFactors::saving(&of, 2000.0), StepFactors::All((16000.0_f64 / 8880.0).exp2()));
    }
}
