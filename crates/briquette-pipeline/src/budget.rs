//! Finds the best output within a size budget, or the smallest output that meets bounds on metrics.
//!
//! A step size is chosen for each tensor from its size in bytes and its loss. The size of codes is estimated
//! from a sample of weights. The estimate does not include the effect of weight updates or the overhead of
//! blocks. Therefore the output is made several times, each time corrected by the size of the previous attempt.

mod attempts;
mod costs;
mod dropped;
mod predicted;
mod size_search;

use crate::file_stages::{Drafted, Miss, SizeRange, draft_of_size};
use crate::report::{AllocationReport, Origin, Report, TensorReport};
use crate::solve::CURVATURE;
use attempts::{Attempt, AttemptClock};
use briquette_core::{Error, Result};
use briquette_formats::{Draft, presence};
use briquette_recipe::{Bounds, Budget, Recipe, Stage, Target};
use briquette_writer::context::RunOptions;
use costs::Costs;
use predicted::PredictedSearch;
use size_search::SizeSearch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The maximum number of attempts. Then the output is accepted however much of the budget it leaves.
const ATTEMPTS: usize = 8;
/// The minimum share of the budget that an output uses.
const USED: f64 = 0.995;
/// The share of the budget that step sizes aim at.
const AIM: f64 = 0.998;

/// Returns the draft of an output within its budget, and its report.
///
/// # Errors
/// - Config: even the coarsest step sizes exceed the budget.
/// - Refused: even the finest step sizes miss the bounds.
/// - See [`run()`](crate::run()).
pub(crate) fn draft(
    recipe: &Recipe,
    budget: &Budget,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<(Draft, Report)> {
    let since = Instant::now();
    let costs = Costs::of(recipe, budget, options)?;
    let mut origin = origin.clone();
    origin.seconds.push(("sensitivity".into(), since.elapsed().as_secs_f64()));
    let target = briquette_recipe::plan::target_text(&budget.target);
    let clock = AttemptClock::start();
    let (first_scratch, is_nearest) = (None, false);
    let mut making = Making { recipe, costs, target, options, origin, scratch, first_scratch, clock, is_nearest };
    let Attempt { draft, mut report, seconds } = match &budget.target {
        Target::Metrics(bounds) => making.good(bounds)?,
        Target::Bytes(_) | Target::Bits(_) => making.sized()?,
    };
    making.clock.add_others(&mut report, &making.origin, seconds);
    Ok((draft, report))
}

/// Returns the initial step sizes of a budget without writing anything.
///
/// If weights are updated, the benefit for each tensor is known only during the run, and the step sizes then
/// change.
///
/// # Errors
/// See [`run()`](crate::run()).
pub fn predicted(recipe: &Recipe, budget: &Budget, options: &RunOptions) -> Result<AllocationReport> {
    let costs = Costs::of(recipe, budget, options)?;
    let payload = match budget.target {
        Target::Metrics(_) => SizeSearch::new(costs.range()).next.exp2(),
        Target::Bytes(_) | Target::Bits(_) => costs.payload(AIM),
    };
    let steps = costs.steps(payload)?;
    Ok(costs.report(&briquette_recipe::plan::target_text(&budget.target), &steps))
}

/// Returns the draft of an output with weight files of at most `most` bytes, and its report.
///
/// Uses the step sizes that `steps` returns for a factor of 1, or for the smallest larger factor that fits. The results of weight updates
/// are stored in `scratch`.
///
/// # Errors
/// - Config: no factor fits.
/// - See [`run()`](crate::run()).
pub(crate) fn within(
    most: u64,
    n_weights: usize,
    steps: &dyn Fn(f64) -> Result<Recipe>,
    options: &RunOptions,
    (origin, scratch): (&Origin, &Path),
) -> Result<(Draft, Report)> {
    let (mut factor, mut clock) = (1.0_f64, AttemptClock::start());
    for _ in 0..ATTEMPTS {
        let since = Instant::now();
        clock.n_attempts += 1;
        let (recipe, scratch) = (steps(factor)?, scratch.join(format!("times-{factor:.4}")));
        let found = match draft_of_size(&recipe, options, origin, Some(&scratch), Some(SizeRange { least: 0, most }))? {
            Drafted::Done(draft, mut report) => {
                clock.add_others(&mut report, origin, since.elapsed().as_secs_f64());
                return Ok((draft, *report));
            }
            Drafted::Missed(miss) => miss.n_bytes,
        };
        let line =
            format!("{found} bytes with the step sizes of the training, expected at most {most}; trying larger ones");
        options.progress.line(&line);
        // One bit less per weight for each doubling.
        let bits = 8.0 * (found as f64 - most as f64 * AIM) / n_weights.max(1) as f64;
        factor *= bits.clamp(0.002, 1.0).exp2();
    }
    let message =
        format!("found no step sizes that fit into {most} bytes after the training; raise the budget slightly");
    Err(Error::config(message).at("budget"))
}

/// The state of the search.
struct Making<'a> {
    recipe: &'a Recipe,
    costs: Costs,
    /// The target in words.
    target: String,
    options: &'a RunOptions,
    origin: Origin,
    scratch: Option<&'a Path>,
    /// The directory of the first attempt, which stays.
    first_scratch: Option<PathBuf>,
    clock: AttemptClock,
    /// Whether weights are rounded to nearest, because their updates take too many bytes.
    is_nearest: bool,
}

impl Making<'_> {
    /// Makes an output whose weight files use the byte budget almost completely.
    fn sized(&mut self) -> Result<Attempt> {
        let (most, uncounted) = (self.costs.most, self.costs.uncounted);
        let wanted_payload = self.costs.payload(AIM);
        let moves = self.recipe.stages.iter().any(Stage::updates_weights);
        let (mut payload, mut kept, mut over) = (wanted_payload, None::<f64>, None::<f64>);
        let (mut before, mut kept_steps, mut smallest) = (None::<(f64, f64)>, None, u64::MAX);
        for attempt in 1..=ATTEMPTS {
            if attempt == ATTEMPTS {
                payload = kept.unwrap_or(payload);
            }
            let steps = self.costs.steps(payload)?;
            // With few schemes there may be no closer size.
            let may_leave = steps.are_finest || attempt == ATTEMPTS || kept_steps == Some(steps.hash());
            let least = if may_leave { 0 } else { (most as f64 * USED) as u64 };
            // Only the first attempt shows the benefit of weight updates for each tensor.
            let is_trial = moves && attempt == 1;
            let counted = SizeRange { least: least + uncounted, most: most.saturating_add(uncounted) };
            let wanted = if is_trial { SizeRange::NEVER } else { counted };
            let found = match self.make(&steps, Some(wanted))? {
                Ok(made) => return Ok(made),
                Err(miss) => {
                    if is_trial {
                        self.costs.learn(&miss.left);
                    }
                    miss.n_bytes.saturating_sub(uncounted)
                }
            };
            let line = match is_trial {
                true => format!(
                    "{found} bytes in the first attempt; trying again with the errors that remain after weight updates"
                ),
                false => format!("{found} bytes with these step sizes, budget {most}; trying again"),
            };
            self.options.progress.line(&line);
            smallest = smallest.min(found);
            match found <= most {
                // The first attempt was based on other losses.
                _ if is_trial => {}
                true => {
                    kept = Some(kept.map_or(payload, |kept| kept.max(payload)));
                    kept_steps = Some(steps.hash());
                }
                false => over = Some(over.map_or(payload, |over| over.min(payload))),
            }
            // Uses the line through this attempt and the previous one, or the same ratio; if that leaves the
            // bracket, bisects it.
            let coded = (found as f64 - self.costs.fixed).max(1.0);
            let slope =
                before.map(|(payload_before, coded_before)| (payload - payload_before) / (coded - coded_before));
            let slope = slope.filter(|slope| (0.1..10.0).contains(slope)).unwrap_or(steps.bytes.max(1.0) / coded);
            before = Some((payload, coded)).filter(|_| !is_trial);
            let between = kept.zip(over).map(|(kept, over)| (kept + over) / 2.0);
            let next = (payload + (wanted_payload - coded) * slope).max(self.costs.range()[0]);
            let is_between = kept.is_none_or(|kept| next > kept) && over.is_none_or(|over| next < over);
            let next = if is_between { next } else { between.unwrap_or(next) };
            // The step sizes are already the coarsest.
            if !is_trial && (next - payload).abs() < 1.0 && kept.is_none() {
                if !moves || self.is_nearest {
                    break;
                }
                self.is_nearest = true;
                self.costs.leave_trellis();
                let line = "the coarsest step sizes with weight updates take too many bytes; rounding to nearest";
                self.options.progress.line(line);
                (before, over) = (None, None);
            }
            payload = next;
        }
        let message = format!("the smallest output takes {smallest} bytes, expected at most {most}; raise the budget");
        Err(Error::config(message).at("budget"))
    }

    /// Searches for the smallest output whose metrics are within bounds.
    fn good(&mut self, bounds: &Bounds) -> Result<Attempt> {
        if let Some(most) = self.costs.largest_loss(bounds) {
            return self.near(most, bounds);
        }
        let (mut search, mut best) = (SizeSearch::new(self.costs.range()), None);
        while let Some(payload) = search.next() {
            let steps = self.costs.steps(payload)?;
            let Ok(made) = self.make(&steps, None)? else {
                return Err(Error::bug("a draft without a size limit was too large"));
            };
            let report = &made.report;
            let metrics = report.evaluation.as_ref().map(|found| &found.metrics);
            let margin = margin(bounds, metrics.unwrap_or(&BTreeMap::new()))?;
            let (n_bytes, word) = (report.after.file_bytes, if margin >= 0.0 { "meet" } else { "miss" });
            self.options.progress.line(&format!("{n_bytes} bytes {word} {bounds}"));
            search.found(payload, margin);
            if search.n_tries() == 1 {
                self.costs.learn(&left_of(report));
            }
            if margin >= 0.0 {
                best = Some(made);
            }
        }
        best.ok_or_else(|| missed(bounds))
    }

    /// Searches for the smallest output with a loss of at most `most`, in the unit of the predicted losses.
    fn near(&mut self, most: f64, bounds: &Bounds) -> Result<Attempt> {
        let moves = self.recipe.stages.iter().any(Stage::updates_weights);
        let (mut search, mut best) = (PredictedSearch::new(most, self.costs.range(), moves), None);
        while let Some(payload) = search.next(|payload| Ok(self.costs.loss(&self.costs.steps(payload)?)))? {
            let steps = self.costs.steps(payload)?;
            let Ok(made) = self.make(&steps, None)? else {
                return Err(Error::bug("a draft without a size limit was too large"));
            };
            let metrics = made.report.evaluation.as_ref().map(|found| &found.metrics);
            let margin = margin(bounds, metrics.unwrap_or(&BTreeMap::new()))?;
            let (n_bytes, word) = (made.report.after.file_bytes, if margin >= 0.0 { "meet" } else { "miss" });
            self.options.progress.line(&format!("{n_bytes} bytes {word} {bounds}"));
            if self.clock.n_attempts == 1 {
                self.costs.learn(&left_of(&made.report));
            }
            search.found(payload, self.costs.loss(&steps), most - margin);
            if search.is_best() {
                best = Some(made);
            }
        }
        best.ok_or_else(|| missed(bounds))
    }

    /// Copies the curvature of the first attempt into the directory of the next one.
    fn share_curvature(&self, scratch: &Path) -> Result<()> {
        let Some(first) = &self.first_scratch else { return Ok(()) };
        let (from, to) = (first.join(CURVATURE), scratch.join(CURVATURE));
        if from == to || !presence::exists(&from)? {
            return Ok(());
        }
        std::fs::create_dir_all(scratch).map_err(|source| Error::io("cannot create the directory", scratch, source))?;
        let copied = std::fs::copy(&from, &to).map_err(|source| Error::io("cannot copy", &from, source));
        copied.map(drop)
    }

    /// Makes an output with these step sizes.
    fn make(&mut self, steps: &costs::Steps, wanted: Option<SizeRange>) -> Result<std::result::Result<Attempt, Miss>> {
        let since = Instant::now();
        self.clock.n_attempts += 1;
        let closed = self.recipe.with_schemes(&steps.schemes)?;
        let (closed, rounding) = if self.is_nearest { (closed.to_nearest(), "-nearest") } else { (closed, "") };
        let allocation = Some(self.costs.report(&self.target, steps));
        let estimated_bytes = wanted.is_none().then_some((self.costs.fixed + steps.bytes) as u64);
        let origin = &Origin { allocation, estimated_bytes, ..self.origin.clone() };
        // The results of a killed run are reused for the same step sizes.
        let scratch: Option<PathBuf> =
            self.scratch.map(|scratch| scratch.join(format!("steps-{}{rounding}", steps.hash())));
        if let Some(scratch) = &scratch {
            self.share_curvature(scratch)?;
        }
        let found = draft_of_size(&closed, self.options, origin, scratch.as_deref(), wanted)?;
        let first = scratch.clone();
        // All later attempts depend only on the first one, so the files of the others are removed.
        if let Some(scratch) = scratch.filter(|_| self.clock.n_attempts > 1)
            && presence::exists(&scratch)?
        {
            std::fs::remove_dir_all(&scratch).map_err(|source| Error::io("cannot remove", &scratch, source))?;
        }
        if self.first_scratch.is_none() {
            self.first_scratch = first;
        }
        let seconds = since.elapsed().as_secs_f64();
        Ok(match found {
            Drafted::Done(draft, report) => Ok(Attempt { draft, report: *report, seconds }),
            Drafted::Missed(miss) => Err(miss),
        })
    }
}

fn missed(bounds: &Bounds) -> Error {
    Error::refused(format!("even the finest step sizes miss {bounds}")).at("budget")
}

/// Returns the remaining error of layers with updated weights, by name.
fn left_of(report: &Report) -> BTreeMap<String, f64> {
    let left = |tensor: &TensorReport| Some((tensor.name.to_string(), tensor.solved.as_ref()?.error_left()?));
    report.tensors.iter().filter_map(left).collect()
}

/// Returns how far metrics are within bounds: the least difference, negative if a bound is missed.
fn margin(bounds: &Bounds, metrics: &BTreeMap<String, f64>) -> Result<f64> {
    bounds.check_known(metrics).map_err(|error| error.at("budget"))?;
    let of = |name: &String| metrics.get(name).copied().filter(|value| value.is_finite());
    let above = bounds.min.iter().map(|(name, bound)| of(name).map_or(f64::NEG_INFINITY, |found| found - bound));
    let below = bounds.max.iter().map(|(name, bound)| of(name).map_or(f64::NEG_INFINITY, |found| bound - found));
    Ok(above.chain(below).fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_that_of_the_worst_metric() {
        let metrics = BTreeMap::from([("cosine".to_string(), 0.99), ("kl".to_string(), f64::NAN)]);
        let bounds = |min: &[(&str, f64)], max: &[(&str, f64)]| {
            let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect();
            Bounds { min: of(min), max: of(max) }
        };
        assert!((margin(&bounds(&[("cosine", 0.98)], &[]), &metrics).unwrap() - 0.01).abs() < 1e-12);
        assert!(margin(&bounds(&[("cosine", 0.98)], &[("kl", 1.0)]), &metrics).unwrap() < 0.0);
        assert!(
            margin(&bounds(&[("accuracy", 0.98)], &[]), &metrics).unwrap_err().to_string().contains("not measured")
        );
    }
}
