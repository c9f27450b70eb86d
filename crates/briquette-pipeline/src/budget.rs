//! The best output in so many bytes: a step for each tensor, found by what it costs and what the model loses by it.
//!
//! What codes take follows from a sample of weights, but for what moving weights does to them and what blocks have besides: so the output is
//! made, and made again by what it had too much or too little.

use crate::compress::{Drafted, Sized, draft_of_size};
use crate::sensitivity::{self, Open};
use briquette_core::{Error, Result, Storage};
use briquette_flow::TensorPlan;
use briquette_flow::context::{RunOptions, Workers};
use briquette_flow::curve::{Curve, OF_SCALE};
use briquette_formats::Draft;
use briquette_quant::{Activations, Candidate, Range, allocate};
use briquette_recipe::{Budget, GivenScheme, Most, Recipe};
use briquette_report::{Origin, Report};
use std::path::Path;

/// Times that an output is made before what keeps to the bytes is taken, however much they leave.
const ATTEMPTS: usize = 6;
/// The share of the bytes that an output has at least.
const USED: f64 = 0.995;
/// The share of the bytes that steps aim at.
const AIM: f64 = 0.998;

/// The draft of an output that keeps to its budget, and its report.
///
/// # Errors
/// Config where not even the coarsest steps keep to it; those of a run.
pub(crate) fn draft(
    recipe: &Recipe,
    budget: &Budget,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<(Draft, Report)> {
    let costs = Costs::of(recipe, budget, options)?;
    let wanted_payload = costs.most as f64 * AIM - costs.fixed;
    let (mut payload, mut kept, mut over) = (wanted_payload, None::<f64>, None::<f64>);
    for attempt in 1..=ATTEMPTS {
        if attempt == ATTEMPTS {
            payload = kept.unwrap_or(payload);
        }
        let steps = costs.steps(payload)?;
        let closed = recipe.with_schemes(&steps.schemes)?;
        let scratch = scratch.map(|scratch| scratch.join(format!("try-{attempt}")));
        let may_leave = steps.are_finest || attempt == ATTEMPTS;
        let least = if may_leave { 0 } else { (costs.most as f64 * USED) as u64 };
        let wanted = Sized { least, most: costs.most };
        match draft_of_size(&closed, options, origin, scratch.as_deref(), Some(wanted))? {
            Drafted::Done(draft, report) => return Ok((draft, *report)),
            Drafted::Missed(found) => {
                let line = format!("{found} bytes with these steps, and at most {} are wanted: once more", costs.most);
                options.progress.line(&line);
                match found <= costs.most {
                    true => kept = Some(kept.map_or(payload, |kept| kept.max(payload))),
                    false => over = Some(over.map_or(payload, |over| over.min(payload))),
                }
                // What was foretold wrongly is foretold as wrongly with steps that are nearly the same; where that leads back, half of the way.
                let share = (found as f64 - costs.fixed).max(1.0) / steps.bytes.max(1.0);
                let between = kept.zip(over).map(|(kept, over)| (kept + over) / 2.0);
                let next = wanted_payload / share;
                let is_between = kept.is_none_or(|kept| next > kept) && over.is_none_or(|over| next < over);
                payload = if is_between { next } else { between.unwrap_or(next) };
            }
        }
    }
    let message = format!("no steps were found that keep to {} bytes; give a little more", costs.most);
    Err(Error::config(message).at("budget"))
}

/// What the tensors of a model cost.
struct Costs {
    curves: Vec<Curve>,
    /// What a tensor's activations are rounded to, as its scheme says it.
    suffixes: Vec<&'static str>,
    /// Whether nothing that ran has it.
    idle: Vec<bool>,
    choices: Vec<Vec<Candidate>>,
    /// Bytes of everything else.
    fixed: f64,
    /// The most bytes of the weight files.
    most: u64,
}

/// A step for each tensor.
struct Steps {
    schemes: Vec<GivenScheme>,
    /// Bytes of all their blocks.
    bytes: f64,
    /// Whether no smaller ones are known.
    are_finest: bool,
}

impl Costs {
    /// Looks at the weights of all tensors whose steps are to be found, and at what the model loses by them.
    fn of(recipe: &Recipe, budget: &Budget, options: &RunOptions) -> Result<Self> {
        let checkpoint = crate::open::model(recipe)?;
        let plan = briquette_plan::plan(recipe, &checkpoint, &options.stop)?;
        let workers = Workers::new(options)?;
        let is_open = |tensor: &&TensorPlan| {
            tensor.tied_to().is_none() && tensor.quant.is_some_and(|quant| quant.spec.range == Range::Step(None))
        };
        let open: Vec<&TensorPlan> = plan.tensors.iter().filter(is_open).collect();
        if open.is_empty() {
            return Err(Error::config("no tensor of the model has a step to find; choose some").at("budget"));
        }
        workers.begin("budget", open.iter().map(|tensor| tensor.info.n_bytes()).sum());
        let measured: Vec<Open> = workers.map(
            &open,
            || (),
            |(), tensor| {
                let curve = Curve::of(tensor, &checkpoint, workers.stop())?;
                workers.advance(tensor.info.n_bytes());
                Ok((*tensor, curve))
            },
        )?;
        let suffix = |tensor: &&TensorPlan| match tensor.quant.map(|quant| quant.activations) {
            Some(Activations::DynamicAsymmetric) => "-dynamic",
            _ => "",
        };
        // Its blocks are foretold with no frequencies, its scales as one for each row.
        let packed = |tensor: &&TensorPlan| match tensor.coding(plan.profile, tensor.info.n_elements()).storage {
            Storage::Entropy { n_bytes } => n_bytes as f64 + OF_SCALE * tensor.rows.n_rows as f64,
            Storage::Dense | Storage::Bitmask => 0.0,
        };
        let fixed = plan.predict()?.n_bytes as f64 - open.iter().map(packed).sum::<f64>();
        let n_weights: usize = measured.iter().map(|(_, curve)| curve.n_weights).sum();
        let most = match budget.most {
            Most::Bytes(bytes) => bytes,
            Most::Bits(bits) => (fixed + bits * n_weights as f64 / 8.0) as u64,
        };
        let suffixes = open.iter().map(suffix).collect();
        let found = sensitivity::find(recipe, &budget.sensitivity, &measured, &checkpoint, options)?;
        let curves: Vec<Curve> = measured.into_iter().map(|(_, curve)| curve).collect();
        let losses =
            |curve: &Curve| found.tensor(&curve.name).map_or((0.0, true), |it| (it.loss_of_square, it.is_idle));
        let choices = curves.iter().map(|curve| curve.choices(losses(curve).0)).collect();
        let idle = curves.iter().map(|curve| losses(curve).1).collect();
        Ok(Self { curves, suffixes, idle, choices, fixed, most })
    }

    /// The steps that lose the least while blocks take at most so many bytes.
    fn steps(&self, payload: f64) -> Result<Steps> {
        let Some(chosen) = allocate(&self.choices, payload) else {
            let least: f64 =
                self.choices.iter().map(|choices| choices.iter().map(|it| it.bytes).fold(f64::MAX, f64::min)).sum();
            let least = self.fixed + least;
            let message = format!(
                "found {} bytes, expected at least {least:.0}: what is not rounded takes {:.0}",
                self.most, self.fixed
            );
            return Err(Error::config(message).at("budget"));
        };
        let given = |(tensor, &place): (usize, &usize)| GivenScheme {
            name: self.curves[tensor].name.clone(),
            scheme: self.curves[tensor].scheme(place) + self.suffixes[tensor],
            is_idle: self.idle[tensor],
        };
        let schemes = chosen.iter().enumerate().map(given).collect();
        let bytes = self.choices.iter().zip(&chosen).map(|(choices, &place)| choices[place].bytes).sum();
        Ok(Steps { schemes, bytes, are_finest: chosen.iter().all(|&place| place == 0) })
    }
}
