//! What tensors cost at each step, and the steps that lose the least.

use crate::sensitivity::{self, OpenTensor};
use briquette_core::{Error, Hash128, Result};
use briquette_methods::quant::{Activations, Candidate, allocate};
use briquette_recipe::plan::siblings;
use briquette_recipe::{Budget, GivenScheme, Recipe, Target};
use briquette_report::{AllocatedTensor, AllocationReport};
use briquette_writer::context::{RunOptions, Workers};
use briquette_writer::curve::Curve;
use std::collections::BTreeMap;

/// The share of an error that is left at least, whatever the calibration says.
const LEAST_LEFT: f64 = 0.01;

/// What the tensors of a model cost.
pub(super) struct Costs {
    curves: Vec<Curve>,
    /// What a tensor's activations are rounded to, as its scheme says it.
    suffixes: Vec<&'static str>,
    /// Whether nothing that ran has it.
    idle: Vec<bool>,
    /// What is lost by a step, over its square, where weights stay where they are.
    losses: Vec<f64>,
    /// How losses were found, and what they are counted in.
    words: [String; 2],
    choices: Vec<Vec<Candidate>>,
    /// Tensors that the same kernels are to multiply by.
    groups: Vec<Vec<usize>>,
    /// Bytes of everything else.
    pub(super) fixed: f64,
    /// The most bytes of the weight files; any where that is not what is asked.
    pub(super) most: u64,
}

/// A step for each tensor.
pub(super) struct Steps {
    pub(super) schemes: Vec<GivenScheme>,
    /// The choice of each tensor.
    places: Vec<usize>,
    /// Bytes of all their blocks.
    pub(super) bytes: f64,
    /// Whether no smaller ones are known.
    pub(super) are_finest: bool,
}

impl Steps {
    /// What tells them from others.
    pub(super) fn hash(&self) -> Hash128 {
        let each = self.schemes.iter().map(|given| format!("{} {} {}\n", given.name, given.scheme, given.is_idle));
        Hash128::of_block(each.collect::<String>().as_bytes())
    }
}

impl Costs {
    /// Looks at the weights of all tensors whose steps are to be found, and at what the model loses by them.
    ///
    /// # Errors
    /// Config where there are none; those of reading and running.
    pub(super) fn of(recipe: &Recipe, budget: &Budget, options: &RunOptions) -> Result<Self> {
        let checkpoint = crate::open::model(recipe)?;
        let plan = briquette_recipe::plan::plan(recipe, &checkpoint, &options.stop)?;
        let workers = Workers::new(options)?;
        let open = sensitivity::open_tensors(&plan, Some(budget), &checkpoint, &workers)?;
        let suffix = |(tensor, _): &OpenTensor| match tensor.quant.map(|quant| quant.activations) {
            Some(Activations::DynamicAsymmetric) => "-dynamic",
            _ => "",
        };
        let packed: u64 = open.iter().map(|(tensor, _)| Ok(plan.predict_tensor(tensor)?.0)).sum::<Result<u64>>()?;
        let fixed = plan.predict()?.n_bytes as f64 - packed as f64;
        let n_weights: usize = open.iter().map(|(_, curve)| curve.n_weights).sum();
        let most = match budget.target {
            Target::Bytes(bytes) => bytes,
            Target::Bits(bits) => (fixed + bits * n_weights as f64 / 8.0) as u64,
            Target::Metrics(_) => u64::MAX,
        };
        let suffixes: Vec<&'static str> = open.iter().map(suffix).collect();
        let found = sensitivity::find(recipe, &budget.sensitivity, &open, &checkpoint, options)?;
        let curves: Vec<Curve> = open.into_iter().map(|(_, curve)| curve).collect();
        let of = |curve: &Curve| found.tensor(&curve.name).map_or((0.0, true), |it| (it.loss_of_square, it.is_idle));
        let (losses, idle): (Vec<f64>, Vec<bool>) = curves.iter().map(of).unzip();
        let choices = choices(&curves, &losses, &suffixes);
        let groups = siblings::groups(curves.iter().map(|curve| curve.name.as_str()));
        let words = [found.how, found.unit];
        Ok(Self { curves, suffixes, idle, losses, words, choices, groups, fixed, most })
    }

    /// Takes in what share of the error of layers' outputs is left by moving their weights, by name.
    pub(super) fn learn(&mut self, left: &BTreeMap<String, f64>) {
        let loss =
            |(curve, loss): (&Curve, &f64)| loss * left.get(&curve.name).map_or(1.0, |left| left.max(LEAST_LEFT));
        let losses: Vec<f64> = self.curves.iter().zip(&self.losses).map(loss).collect();
        self.choices = choices(&self.curves, &losses, &self.suffixes);
    }

    /// Reports some steps, with their predicted bytes and losses.
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

    /// The fewest and the most bytes that blocks can have.
    pub(super) fn range(&self) -> [f64; 2] {
        let sum = |pick: fn(f64, f64) -> f64| -> f64 {
            self.choices.iter().filter_map(|choices| choices.iter().map(|choice| choice.bytes).reduce(pick)).sum()
        };
        [sum(f64::min), sum(f64::max)]
    }

    /// The steps that lose the least while blocks take at most so many bytes.
    ///
    /// # Errors
    /// Config where even the coarsest take more.
    pub(super) fn steps(&self, payload: f64) -> Result<Steps> {
        // Sums of the same numbers in another order are not quite the same.
        let chosen = |groups: &[Vec<usize>]| allocate(&self.choices, groups, payload * (1.0 + 1e-12));
        // Where the bytes do not suffice for tensors together, they may for each by itself.
        let Some(chosen) = chosen(&self.groups).or_else(|| chosen(&[])) else {
            let least = self.fixed + self.range()[0];
            let message = format!(
                "found {} bytes, expected at least {least:.0}: what is not rounded takes {:.0}",
                self.most, self.fixed
            );
            return Err(Error::config(message).at("budget"));
        };
        let given = |(tensor, &place): (usize, &usize)| GivenScheme {
            name: self.curves[tensor].name.clone(),
            scheme: self.curves[tensor].scheme(place, self.suffixes[tensor]),
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
