//! The size and loss of tensors for each step size, and the allocation with the least loss.

use super::dropped::DroppedBytes;
use crate::frequency;
use crate::memory::limit_of_host;
use crate::report::{AllocatedTensor, AllocationReport};
use crate::sensitivity::{self, OpenTensor};
use briquette_core::entropy::trellis::can_have_trellis;
use briquette_core::{Error, Hash128, Result};
use briquette_formats::Checkpoint;
use briquette_methods::quant::{Activations, Candidate, Rounding, ScaleSearch, allocate};
use briquette_recipe::plan::{siblings, topology_of};
use briquette_recipe::{Bounds, Budget, GivenScheme, Recipe, Target};
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::curve::Curve;
use briquette_writer::survey::leave_nonfinite;
use briquette_writer::{Plan, TensorPlan};
use std::collections::BTreeMap;

/// The minimum share of an error that remains after weight updates, whatever the calibration shows.
const LEAST_LEFT: f64 = 0.01;

/// The costs of a model's tensors.
pub(super) struct Costs {
    curves: Vec<Curve>,
    /// The suffix of each tensor's scheme for its activations.
    suffixes: Vec<&'static str>,
    /// Whether no sample used the tensor.
    idle: Vec<bool>,
    /// Whether the codes of a step size are chosen on a trellis.
    has_trellis: Vec<bool>,
    /// The loss per squared step size, without weight updates.
    losses: Vec<f64>,
    /// How losses were measured, and their unit.
    words: [String; 2],
    choices: Vec<Vec<Candidate>>,
    /// Groups of tensors that must share a kernel.
    groups: Vec<Vec<usize>>,
    /// The tensors that a training drops.
    dropped: DroppedBytes,
    /// The size of everything else in bytes.
    pub(super) fixed: f64,
    /// The bytes of files that do not count.
    pub(super) uncounted: u64,
    /// The limit of the weight files in bytes; the maximum value without a size budget.
    pub(super) most: u64,
}

/// The scheme of each tensor.
pub(super) struct Steps {
    pub(super) schemes: Vec<GivenScheme>,
    /// The candidate index of each tensor.
    places: Vec<usize>,
    /// The size of all blocks in bytes.
    pub(super) bytes: f64,
    /// Whether there are no finer step sizes.
    pub(super) are_finest: bool,
}

impl Steps {
    /// Returns a hash of the schemes.
    pub(super) fn hash(&self) -> Hash128 {
        let each = self.schemes.iter().map(|given| format!("{} {} {}\n", given.name, given.scheme, given.is_idle));
        Hash128::of_block(each.collect::<String>().as_bytes())
    }
}

/// Returns the threads that measure the weights within the memory limit of a recipe.
fn workers_of_curves(recipe: &Recipe, plan: &Plan, checkpoint: &Checkpoint, options: &RunOptions) -> Result<Workers> {
    let workers = Workers::new(options)?;
    let Some(limit) = limit_of_host(recipe.memory_limit, options) else { return Ok(workers) };
    let open: Vec<&TensorPlan> = plan.tensors.iter().filter(|tensor| sensitivity::is_open(tensor)).collect();
    let threads = plan.threads_of_curves(&open, checkpoint, &limit, workers.n_threads())?;
    Workers::new(&RunOptions { threads, ..options.clone() })
}

impl Costs {
    /// Measures the weights of all tensors whose step size is open, and their sensitivities.
    ///
    /// # Errors
    /// - Config: there are no such tensors.
    /// - See [`sensitivity::find`].
    pub(super) fn of(recipe: &Recipe, budget: &Budget, options: &RunOptions) -> Result<Self> {
        let checkpoint = crate::open::model(recipe)?;
        let mut plan = briquette_recipe::plan::plan(recipe, &checkpoint, &options.stop)?;
        let workers = workers_of_curves(recipe, &plan, &checkpoint, options)?;
        leave_nonfinite(&mut plan, &checkpoint, &workers)?;
        let is_open =
            |tensor: &TensorPlan| tensor.quant.is_some_and(|quant| quant.spec.range == ScaleSearch::Step(None));
        // A training rounds to one step for each tensor, or leaves a tensor as it is.
        let may_follow = |tensor: &TensorPlan| is_open(tensor) && budget.keeps_rounded(&tensor.info.name);
        let rows = match budget.has_steps {
            true => frequency::row_steps(recipe, &plan, &checkpoint, may_follow)?,
            false => BTreeMap::new(),
        };
        let open = sensitivity::open_tensors(&plan, Some(budget), &rows, &checkpoint, &workers)?;
        let suffix = |(tensor, _): &OpenTensor| match tensor.quant.map(|quant| quant.activations) {
            Some(Activations::DynamicAsymmetric) => "-dynamic",
            _ => "",
        };
        let dropped = DroppedBytes::of(&plan, &open, &budget.dropped)?;
        let (fixed, n_weights) = (dropped.fixed, dropped.n_weights(&open));
        let most = match budget.target {
            Target::Bytes(bytes) => bytes,
            Target::Bits(bits) => (fixed + bits * n_weights as f64 / 8.0) as u64,
            Target::Metrics(_) => u64::MAX,
        };
        let suffixes: Vec<&'static str> = open.iter().map(suffix).collect();
        let found = sensitivity::find(recipe, &budget.sensitivity, &open, &checkpoint, options)?;
        // Zeros that a stage leaves have no place on most paths, and only updated weights are rounded to paths.
        let may_have = |(tensor, _): &OpenTensor| {
            let is_rounded = tensor.solve.rounding == Rounding::Gptq || rows.contains_key(&tensor.index());
            let is_updated = tensor.prune.is_none() && is_rounded;
            budget.has_trellis && is_updated && can_have_trellis(tensor.rows().n_cols)
        };
        let has_trellis: Vec<bool> = open.iter().map(may_have).collect();
        let curves: Vec<Curve> = open.into_iter().map(|(_, curve)| curve).collect();
        let of = |curve: &Curve| found.tensor(&curve.name).map_or((0.0, true), |it| (it.loss_of_square, it.is_idle));
        let (losses, idle): (Vec<f64>, Vec<bool>) = curves.iter().map(of).unzip();
        let mut choices = choices(&curves, &losses, &suffixes);
        let uncounted = dropped.leave_smallest(&mut choices);
        let topology = topology_of(recipe, &checkpoint)?;
        let groups = siblings::groups(curves.iter().map(|curve| curve.name.as_str()), &topology);
        let words = [found.how, found.unit];
        let has_trellis = has_trellis.iter().zip(&idle).map(|(may_have, is_idle)| *may_have && !is_idle).collect();
        Ok(Self {
            curves,
            suffixes,
            idle,
            has_trellis,
            losses,
            words,
            choices,
            groups,
            dropped,
            fixed,
            uncounted,
            most,
        })
    }

    /// Updates the losses with the share of each layer's output error that remains after weight updates, by
    /// name.
    pub(super) fn learn(&mut self, left: &BTreeMap<String, f64>) {
        let loss =
            |(curve, loss): (&Curve, &f64)| loss * left.get(&curve.name).map_or(1.0, |left| left.max(LEAST_LEFT));
        let losses: Vec<f64> = self.curves.iter().zip(&self.losses).map(loss).collect();
        self.choices = choices(&self.curves, &losses, &self.suffixes);
        self.dropped.leave_smallest(&mut self.choices);
    }

    /// Chooses no codes on a trellis any more, because weights are rounded to the nearest.
    pub(super) fn leave_trellis(&mut self) {
        self.has_trellis.fill(false);
    }

    /// Returns the largest loss within bounds, in the unit of the predicted losses, if that is known.
    ///
    /// This is the case for a single bound on the cosine of embeddings.
    pub(super) fn largest_loss(&self, bounds: &Bounds) -> Option<f64> {
        let is_single = bounds.max.is_empty() && bounds.min.len() == 1 && self.words[1] == "1 - cosine";
        bounds.min.get("cosine").filter(|_| is_single).map(|least| 1.0 - least).filter(|most| *most > 0.0)
    }

    /// Returns the predicted loss of step sizes.
    pub(super) fn loss(&self, steps: &Steps) -> f64 {
        self.choices.iter().zip(&steps.places).map(|(choices, &place)| choices[place].loss).sum()
    }

    /// Returns a report of step sizes with their predicted bytes and losses.
    pub(super) fn report(&self, target: &str, steps: &Steps) -> AllocationReport {
        let tensor = |(tensor, &place): (usize, &usize)| {
            let (curve, Candidate { bytes, loss, .. }) = (&self.curves[tensor], self.choices[tensor][place]);
            AllocatedTensor {
                name: curve.name.clone(),
                scheme: steps.schemes[tensor].scheme.clone(),
                n_weights: curve.n_weights,
                bytes,
                loss,
                sensitivity: sensitivity::at_four_bits(self.losses[tensor], curve.rms),
            }
        };
        let [how, unit] = self.words.clone();
        AllocationReport {
            target: target.into(),
            how,
            unit,
            most_bytes: Some(self.most).filter(|&most| most < u64::MAX),
            is_finest: steps.are_finest,
            tensors: steps.places.iter().enumerate().map(tensor).collect(),
        }
    }

    /// Returns the smallest and the largest size of all blocks in bytes.
    pub(super) fn range(&self) -> [f64; 2] {
        let sum = |pick: fn(f64, f64) -> f64| -> f64 {
            self.choices.iter().filter_map(|choices| choices.iter().map(|choice| choice.bytes).reduce(pick)).sum()
        };
        [sum(f64::min), sum(f64::max)]
    }

    /// Returns the size of all blocks to aim at: a share of the budget, or all of it if the coarsest steps need it.
    pub(super) fn payload(&self, share: f64) -> f64 {
        let [aim, all] = [share, 1.0].map(|share| self.most as f64 * share - self.fixed);
        if aim < self.range()[0] { all } else { aim }
    }

    /// Returns the step sizes of least loss with blocks of at most `payload` bytes.
    ///
    /// # Errors
    /// Config: even the coarsest step sizes take more.
    pub(super) fn steps(&self, payload: f64) -> Result<Steps> {
        // The slack covers rounding of sums in another order.
        let chosen = |groups: &[Vec<usize>]| allocate(&self.choices, groups, payload * (1.0 + 1e-12));
        // If groups do not fit the budget, single tensors may.
        let Some(chosen) = chosen(&self.groups).or_else(|| chosen(&[])) else {
            let least = self.fixed + self.range()[0];
            let message = format!(
                "found {} bytes, expected at least {least:.0}; all other tensors take {:.0}",
                self.most, self.fixed
            );
            return Err(Error::config(message).at("budget"));
        };
        let given = |(tensor, &place): (usize, &usize)| GivenScheme {
            name: self.curves[tensor].name.clone(),
            scheme: self.curves[tensor].scheme(place, self.has_trellis[tensor], self.suffixes[tensor]),
            is_idle: self.idle[tensor],
        };
        let schemes = chosen.iter().enumerate().map(given).collect();
        let least = |choices: &Vec<Candidate>| choices.iter().map(|choice| choice.loss).fold(f64::INFINITY, f64::min);
        let are_finest =
            self.choices.iter().zip(&chosen).all(|(choices, &place)| choices[place].loss <= least(choices));
        let bytes = self.choices.iter().zip(&chosen).map(|(choices, &place)| choices[place].bytes).sum();
        Ok(Steps { schemes, bytes, are_finest, places: chosen })
    }
}

fn choices(curves: &[Curve], losses: &[f64], suffixes: &[&str]) -> Vec<Vec<Candidate>> {
    let all = curves.iter().zip(losses).zip(suffixes);
    all.map(|((curve, &loss), suffix)| curve.choices(loss, !suffix.is_empty())).collect()
}
