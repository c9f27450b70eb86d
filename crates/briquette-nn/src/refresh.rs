//! Renews decisions: first finds thresholds that several parameters share, then decides each parameter in turn.

use crate::attached::{bools, floats};
use crate::parameters::Trail;
use crate::rules::{Amount, RuleTarget, Rules};
use crate::view;
use crate::weights::{for_each_weight_in, read_bools, read_f32};
use crate::{Attached, Prune, Scope};
use briquette_core::{Error, Mask, Result, Rows, bits, simd};
use briquette_prune::score::WeightSlice;
use briquette_prune::{Histogram, Score, Threshold, select};
use briquette_quant::fit;
use burn::module::{Module, ModuleMapper, Param, Reparameterization};
use burn::tensor::{Bool, Device, Tensor};
use std::collections::BTreeMap;

/// Which rules are due at this step, and the threshold of each rule whose parameters share one.
struct Due<'a> {
    rules: Rules<'a>,
    targets: &'a BTreeMap<String, RuleTarget>,
    step: usize,
    prune: Vec<bool>,
    quantize: Vec<bool>,
    thresholds: Vec<Option<Threshold>>,
}

/// Renews the decisions that are due at `step`; where `is_start`, all those of rules that have begun by then.
pub(crate) fn refresh<M: Module>(
    rules: Rules,
    targets: &BTreeMap<String, RuleTarget>,
    module: M,
    step: usize,
    is_start: bool,
) -> Result<M> {
    let is_due = |schedule: &crate::Schedule| if is_start { schedule.has_begun(step) } else { schedule.is_due(step) };
    let mut due = Due {
        rules,
        targets,
        step,
        prune: rules.prune.iter().map(|rule| is_due(&rule.schedule)).collect(),
        quantize: rules.quantize.iter().map(|rule| is_due(&rule.schedule)).collect(),
        thresholds: vec![None; rules.prune.len()],
    };
    for index in 0..rules.prune.len() {
        if due.prune[index] && rules.prune[index].scope == Scope::Global {
            due.thresholds[index] = due.threshold(index, &module)?;
        }
    }
    let mut refresher = Refresher { due, trail: Trail::default(), held: None, error: None };
    let module = module.map(&mut refresher);
    match refresher.error {
        Some(error) => Err(error),
        None => Ok(module),
    }
}

impl Due<'_> {
    /// The threshold over all parameters of a rule, found in two passes that count scores.
    fn threshold<M: Module>(&self, rule: usize, module: &M) -> Result<Option<Threshold>> {
        let prune = &self.rules.prune[rule];
        let &Amount::Ratio(to) = &prune.amount else { return Ok(None) };
        let members = || self.targets.values().filter(|target| target.prune == Some(rule));
        let n: usize = members().map(|target| target.rows.n_elements()).sum();
        let n_drop = prune.schedule.ratio(self.step, prune.from, to).of(n);
        let mut histogram = Histogram::coarse();
        self.count(rule, module, &mut histogram)?;
        let Some(n_in_bucket) = histogram.refine(n_drop) else { return Ok(Some(Threshold::default())) };
        self.count(rule, module, &mut histogram)?;
        Ok(Some(histogram.threshold(n_in_bucket)))
    }

    fn count<M: Module>(&self, rule: usize, module: &M, histogram: &mut Histogram) -> Result<()> {
        let target_of = |path: &str| self.targets.get(path).filter(|target| target.prune == Some(rule));
        for_each_weight_in(
            module,
            |path| target_of(path).is_some(),
            |weight| {
                check_finite(&weight.values, &weight.parameter.path)?;
                if let Some(target) = target_of(&weight.parameter.path) {
                    let (rule, mask) = (&self.rules.prune[rule], weight.decision.mask.as_ref());
                    histogram.count(&scores(rule, target, &weight.values, mask));
                }
                Ok(())
            },
        )
    }

    /// Whether a rule that is due applies to this parameter.
    fn touches(&self, target: &RuleTarget) -> bool {
        target.prune.is_some_and(|rule| self.prune[rule]) || target.quantize.is_some_and(|rule| self.quantize[rule])
    }

    /// The mask of a parameter after this step.
    fn mask(&mut self, target: &RuleTarget, held: &PendingWeight) -> Option<Mask> {
        let old = held.mask.clone();
        let Some(index) = target.prune.filter(|&rule| self.prune[rule]) else { return old };
        let rule = &self.rules.prune[index];
        let scores = || scores(rule, target, &held.values, old.as_ref());
        let Rows { n_rows, n_cols, .. } = held.rows;
        let new = match (&rule.amount, &mut self.thresholds[index]) {
            (&Amount::NOfM { n, m }, _) => select::n_of_m(&scores(), n_rows, n_cols, n, m),
            (Amount::Ratio(_), Some(threshold)) => above(&scores(), n_rows, n_cols, threshold),
            (&Amount::Ratio(to), None) if rule.score.needs_inputs() => {
                let n_drop = rule.schedule.ratio(self.step, rule.from, to).of(n_cols);
                of_each_row(&scores(), n_rows, n_cols, n_drop)
            }
            (&Amount::Ratio(to), None) => {
                let n_drop = rule.schedule.ratio(self.step, rule.from, to).of(held.values.len());
                select::smallest(&scores(), n_rows, n_cols, n_drop)
            }
            (Amount::Zeros, _) if !held.values.contains(&0.0) => return old,
            (Amount::Zeros, _) => Mask::from_fn(n_rows, n_cols, |row, col| held.values[row * n_cols + col] != 0.0),
            (Amount::Outside(mask), _) => mask.clone(),
        };
        // A dropped weight stays dropped, even if the schedule's sparsity falls.
        Some(match old {
            Some(old) => {
                let both = new.as_bits().iter().zip(old.as_bits()).map(|(new, old)| new & old).collect();
                Mask::from_bits(n_rows, n_cols, both)
            }
            None => new,
        })
    }
}

/// Keeps scores above a threshold; ties are dropped in order, from one parameter to the next.
fn above(scores: &[f32], n_rows: usize, n_cols: usize, threshold: &mut Threshold) -> Mask {
    let mut bits = vec![0; n_rows * Mask::row_bytes(n_cols)];
    if n_cols > 0 {
        for (scores, bits) in scores.chunks(n_cols).zip(bits.chunks_mut(Mask::row_bytes(n_cols))) {
            simd::keep_above(scores, threshold.key, &mut threshold.n_ties, bits);
        }
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

/// Drops the smallest scores of each row.
fn of_each_row(scores: &[f32], n_rows: usize, n_cols: usize, n_drop: usize) -> Mask {
    let (mut bits, mut keys) = (vec![0; n_rows * Mask::row_bytes(n_cols)], Vec::new());
    if n_cols > 0 {
        for (scores, bits) in scores.chunks(n_cols).zip(bits.chunks_mut(Mask::row_bytes(n_cols))) {
            select::smallest_of_each(scores, n_cols, n_drop, &mut keys, bits);
        }
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

/// Scores of effective weights: a dropped weight scores 0, and a kept one more than that even where it is 0.
fn scores(rule: &Prune, target: &RuleTarget, values: &[f32], mask: Option<&Mask>) -> Vec<f32> {
    let n_cols = target.rows.n_cols;
    let score = match rule.score {
        Score::Random(seed) => Score::Random(seed.wrapping_add((target.index as u64) << 40)),
        score => score,
    };
    let mut scratch = Vec::new();
    let weights = WeightSlice { values, first: 0, n_cols, inputs: rule.inputs.get(&target.layer) };
    let mut scores = score.of(weights, &mut scratch).to_vec();
    let least = f32::from_bits(1);
    scores.iter_mut().for_each(|score| *score = score.abs().max(least));
    if let Some(mask) = mask.filter(|_| n_cols > 0) {
        for (row, scores) in scores.chunks_mut(n_cols).enumerate() {
            let keep = mask.row(row);
            scores.iter_mut().enumerate().filter(|(col, _)| !bits::get(keep, *col)).for_each(|(_, score)| *score = 0.0);
        }
    }
    scores
}

fn check_finite(values: &[f32], path: &str) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::refused(format!("weight {at} is {}; lower the learning rate", values[at])).at(path)),
        None => Ok(()),
    }
}

/// The parameter whose base was visited, while its attached state is still to come.
struct PendingWeight {
    path: String,
    rows: Rows,
    values: Vec<f32>,
    mask: Option<Mask>,
    affines: Option<(Vec<f32>, Vec<f32>)>,
}

struct Refresher<'a> {
    due: Due<'a>,
    trail: Trail,
    held: Option<PendingWeight>,
    error: Option<Error>,
}

impl Refresher<'_> {
    fn hold<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let path = self.trail.path();
        let Some(target) = self.due.targets.get(&path).filter(|target| self.due.touches(target)) else { return Ok(()) };
        let values = view::to_rows(read_f32(param.base(), &path)?, &target.rows);
        check_finite(&values, &path)?;
        self.held = Some(PendingWeight { path, rows: target.rows, values, mask: None, affines: None });
        Ok(())
    }

    /// Decides about the held parameter, given what is dropped so far. Returns what is dropped from now on.
    fn decide<const D: usize>(&mut self, dropped: Tensor<D, Bool>) -> Result<Option<Vec<bool>>> {
        let Some(mut held) = self.held.take() else { return Ok(None) };
        let target = self.due.targets[&held.path].clone();
        let state = crate::weights::State { dropped: read_bools(dropped, &held.path)?, ..Default::default() };
        held.mask = state.decision(&held.rows).mask;
        held.mask = self.due.mask(&target, &held);
        if let Some(rule) = target.quantize.map(|rule| &self.due.rules.quantize[rule])
            && rule.schedule.has_begun(self.due.step)
        {
            let fitted = || fit(&held.values, held.rows.n_cols, held.mask.as_ref(), &rule.scheme.weights);
            let params = rule.given.clone().unwrap_or_else(fitted);
            held.affines = Some(view::affines_to_own(&params.affines, &held.rows));
        }
        let dropped = held.mask.as_ref().map(|mask| dropped_of(mask, &held.rows));
        self.held = Some(held);
        Ok(dropped)
    }

    fn field(&self) -> Option<String> {
        let (path, name, field) = self.trail.reparameterized()?;
        let is_held = self.held.as_ref().is_some_and(|held| held.path == path);
        (name == Attached::NAME && is_held && self.error.is_none()).then_some(field)
    }
}

/// Which weights a mask drops, in the parameter's own order.
fn dropped_of(mask: &Mask, rows: &Rows) -> Vec<bool> {
    let dropped = (0..rows.n_rows).flat_map(|row| (0..rows.n_cols).map(move |col| u8::from(!mask.keeps(row, col))));
    view::to_own(dropped.collect(), rows).into_iter().map(|dropped| dropped != 0).collect()
}

impl ModuleMapper for Refresher<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        if self.trail.reparameterized().is_none() {
            if let Err(error) = self.hold(&param) {
                self.error = Some(error);
            }
            return param;
        }
        let (Some(field), Some(held)) = (self.field(), &mut self.held) else { return param };
        let Some((scale, zero)) = &mut held.affines else { return param };
        let values = std::mem::take(if field == "scale" { scale } else { zero });
        let (id, device): (_, Device) = (param.id, param.lazy_device());
        Param::initialized(id, floats(values, &device).reshape([-1; D]))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        if self.field().is_none() {
            return param;
        }
        match self.decide(param.val()) {
            Ok(Some(dropped)) => {
                let (id, device) = (param.id, param.lazy_device());
                Param::initialized(id, bools(dropped, &device).reshape([-1; D]))
            }
            Ok(None) => param,
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}
