//! Updates decisions: finds shared thresholds first, then decides all parameters in parallel.

use crate::attached::{bools, form_tensor, replaced};
use crate::form::Form;
use crate::live::{LiveWeight, live_weights};
use crate::module::{Trail, view};
use crate::pool::{Look, ParameterPool, Scored, check_finite};
use crate::rules::{RuleTarget, Rules, Scoring};
use crate::scores::{RowScores, drop_below};
use crate::{Attached, Prune, Schedule, Scope, Score, decide};
use briquette_core::{Affine, Error, QuantParams, Result, Rows};
use briquette_methods::prune::{Ratio, Threshold};
use briquette_methods::quant::QuantSpec;
use briquette_methods::reconstruct::nearest_on_trellis;
use burn::module::{Module, ModuleMapper, Param, Reparameterization};
use burn::tensor::{Bool, Int, Tensor};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// The step of an update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) step: usize,
    /// Step of the last decision; `None` on attachment, when all rules that have begun are due.
    pub(crate) since: Option<usize>,
}

impl Moment {
    fn is_due(&self, schedule: &Schedule) -> bool {
        match self.since {
            None => schedule.has_begun(self.step),
            Some(since) => schedule.is_due_since(since, self.step),
        }
    }
}

/// The due rules and the shared thresholds.
struct Due<'a> {
    rules: Rules<'a>,
    targets: &'a BTreeMap<String, RuleTarget>,
    step: usize,
    prune: Vec<bool>,
    quantize: Vec<bool>,
    /// Threshold of each parameter that shares one, with the number of its ties to drop.
    thresholds: BTreeMap<String, Threshold>,
}

/// New decisions about a parameter; `None` for what stays unchanged.
#[derive(Default)]
struct Renewed {
    dropped: Option<Tensor<1, Bool>>,
    scale: Option<Vec<f32>>,
    zero: Option<Vec<f32>>,
    rounded: Option<Vec<f32>>,
}

/// Reused buffers: the weights of a parameter as rows of outputs, and their scores.
#[derive(Default)]
struct Buffers {
    values: Vec<f32>,
    scores: Vec<f32>,
}

/// Updates the decisions that are due.
pub(crate) fn refresh<M: Module>(
    rules: Rules,
    targets: &BTreeMap<String, RuleTarget>,
    module: M,
    moment: Moment,
) -> Result<M> {
    let mut due = Due {
        rules,
        targets,
        step: moment.step,
        prune: rules.prune.iter().map(|rule| moment.is_due(&rule.schedule)).collect(),
        quantize: rules.quantize.iter().map(|rule| moment.is_due(&rule.schedule())).collect(),
        thresholds: BTreeMap::new(),
    };
    let renewed = due.decide_all(&module)?;
    Ok(module.map(&mut Renewer { renewed, rules, targets, step: moment.step, trail: Trail::default() }))
}

impl Due<'_> {
    /// Decides every parameter with a due rule.
    fn decide_all<M: Module>(&mut self, module: &M) -> Result<BTreeMap<String, Renewed>> {
        let is_due =
            |path: &str| self.targets.get(path).is_some_and(|target| target.main == path && self.touches(target));
        let weights = live_weights(module, is_due);
        for index in 0..self.rules.prune.len() {
            if self.prune[index] && self.rules.prune[index].scope() == Scope::Global {
                let found = self.shared_thresholds(index, &weights)?;
                self.thresholds.extend(found);
            }
        }
        let decide =
            |buffers: &mut Buffers, weight: &LiveWeight| Ok((weight.path.clone(), self.decide(weight, buffers)?));
        weights.par_iter().map_init(Buffers::default, decide).collect()
    }

    /// Returns whether a due rule applies to this parameter.
    fn touches(&self, target: &RuleTarget) -> bool {
        target.prune.is_some_and(|rule| self.prune[rule]) || target.quantize.is_some_and(|rule| self.quantize[rule])
    }

    /// Returns the threshold of each parameter of a global rule; empty unless the rule prunes to a sparsity.
    fn shared_thresholds(&self, rule: usize, weights: &[LiveWeight]) -> Result<Vec<(String, Threshold)>> {
        let prune = &self.rules.prune[rule];
        let Some(to) = prune.sparsity() else { return Ok(Vec::new()) };
        let members: Vec<&LiveWeight> =
            weights.iter().filter(|weight| self.targets[&weight.path].prune == Some(rule)).collect();
        let found = self.thresholds_of(prune, prune.schedule.ratio(self.step, prune.from, to), &members)?;
        Ok(members.iter().map(|weight| weight.path.clone()).zip(found).collect())
    }

    /// Returns thresholds that drop this ratio of all members together.
    fn thresholds_of(&self, rule: &Prune, ratio: Ratio, members: &[&LiveWeight]) -> Result<Vec<Threshold>> {
        let n = members.iter().map(|weight| self.targets[&weight.path].rows.n_elements()).sum();
        let mut buffers = Buffers::default();
        let show = |weight: &&LiveWeight, look: &mut Look| self.show(weight, rule, &mut buffers, look);
        ParameterPool { members, n, show }.thresholds(ratio.of(n))
    }

    /// Passes the scores of a parameter to `look`.
    fn show(&self, weight: &LiveWeight, rule: &Prune, buffers: &mut Buffers, look: &mut Look) -> Result<()> {
        let target = &self.targets[&weight.path];
        if is_by_magnitude(rule) {
            let looked = weight
                .with_values(|values| weight.with_dropped(|dropped| look(Scored::Weights(values, dropped))))??;
            return looked.map_err(|error| error.at(&weight.path));
        }
        read_rows(weight, target, &[], &mut buffers.values)?;
        let kept = weight.with_dropped(|dropped| view::mask_of(dropped, &target.rows))?;
        let scores = RowScores::new(rule, target, &weight.path, &buffers.values, kept.as_ref())?;
        look(Scored::Scores(scores.all(&mut buffers.scores)))
    }

    /// Decides a parameter.
    fn decide(&self, weight: &LiveWeight, buffers: &mut Buffers) -> Result<Renewed> {
        let target = &self.targets[&weight.path];
        let new = match target.prune.filter(|&rule| self.prune[rule]) {
            Some(rule) => self.dropped(&self.rules.prune[rule], weight, buffers)?,
            None => None,
        };
        let mut renewed = Renewed::default();
        if let Some(affines) = self.affines(weight, target, new.as_deref(), &mut buffers.values)? {
            let spec = target.quantize.map(|rule| self.rules.quantize[rule].scheme_for(target.rows.n_cols).weights);
            renewed.rounded = spec
                .filter(|spec| spec.has_trellis)
                .map(|spec| on_trellis(&spec, &mut buffers.values, &affines, &target.rows));
            let (scale, zero) = view::affines_to_own(&affines, &target.rows);
            (renewed.scale, renewed.zero) = (Some(scale), Some(zero));
        }
        renewed.dropped = new.map(|dropped| bools(dropped, &weight.device));
        Ok(renewed)
    }

    /// Returns the weights that a rule drops from now on, in the parameter's own order; `None` if nothing
    /// changes.
    fn dropped(&self, rule: &Prune, weight: &LiveWeight, buffers: &mut Buffers) -> Result<Option<Vec<bool>>> {
        let target = &self.targets[&weight.path];
        let shared = self.thresholds.get(&weight.path).copied();
        let sparsity = rule.sparsity();
        let ratio = sparsity.map_or(rule.from, |to| rule.schedule.ratio(self.step, rule.from, to));
        let is_share = sparsity.is_some() && matches!(rule.scope(), Scope::Layer | Scope::Global);
        // Magnitudes of weights on the CPU are compared in place.
        if is_share && is_by_magnitude(rule) && weight.is_on_host() {
            let alone = || Ok(self.thresholds_of(rule, ratio, &[weight])?.first().copied().unwrap_or_default());
            let threshold = shared.map_or_else(alone, Ok)?;
            return weight.with_values(|values| {
                weight.with_dropped(|dropped| drop_below(values, dropped, threshold, &target.rows))
            })?;
        }
        let Buffers { values, scores: all } = buffers;
        read_rows(weight, target, &[], values)?;
        let old = weight.with_dropped(|dropped| view::mask_of(dropped, &target.rows))?;
        let scores = RowScores::new(rule, target, &weight.path, values, old.as_ref())?;
        let new = decide::mask(rule, ratio, &scores, shared, all);
        Ok(new.map(|mask| view::dropped_of(&mask, &target.rows)))
    }

    /// Returns the new scales of a parameter; `None` before quantization begins, or if the scales are learned.
    fn affines(
        &self,
        weight: &LiveWeight,
        target: &RuleTarget,
        dropped: Option<&[bool]>,
        values: &mut Vec<f32>,
    ) -> Result<Option<Vec<Affine>>> {
        let Some(rule) = target.quantize.map(|rule| &self.rules.quantize[rule]) else { return Ok(None) };
        if !rule.schedule.has_begun(self.step) || rule.is_learned && weight.has_scales()? {
            return Ok(None);
        }
        if let Some(given) = &rule.given {
            return Ok(Some(given.affines.clone()));
        }
        let mut fit = |dropped: &[u8]| -> Result<Vec<Affine>> {
            read_rows(weight, target, dropped, values)?;
            let spec = &rule.scheme_for(target.rows.n_cols).weights;
            let mask = if spec.range.sees_through_zeros() { None } else { view::mask_of(dropped, &target.rows) };
            Ok(decide::affines(spec, &target.rows, mask.as_ref(), values))
        };
        let found = match dropped {
            Some(dropped) => fit(bytemuck::cast_slice(dropped)),
            None => weight.with_dropped(fit)?,
        }?;
        check_scales(&found).map_err(|error| error.at(&weight.path)).map(|()| Some(found))
    }
}

/// Returns rows of weights on a trellis, in the parameter's own order.
fn on_trellis(spec: &QuantSpec, values: &mut Vec<f32>, affines: &[Affine], rows: &Rows) -> Vec<f32> {
    let quant = QuantParams::new(spec.grid, spec.grouping, rows.n_cols, affines.to_vec());
    nearest_on_trellis(values, rows.n_cols, &quant);
    view::to_own(std::mem::take(values), rows)
}

/// Refuses scales that files cannot store.
fn check_scales(affines: &[Affine]) -> Result<()> {
    let is_held = |scale: f32| scale.is_finite() && scale > 0.0;
    match affines.iter().find(|affine| !is_held(affine.scale)) {
        Some(Affine { scale, .. }) => Err(Error::refused(format!(
            "found a scale of {scale}, expected a finite number above 0; rescale the weights"
        ))),
        None => Ok(()),
    }
}

fn is_by_magnitude(rule: &Prune) -> bool {
    matches!(rule.scoring, Scoring::Known(Score::Magnitude))
}

/// Reads the weights of a parameter as rows of outputs; dropped weights become 0.
fn read_rows(weight: &LiveWeight, target: &RuleTarget, dropped: &[u8], values: &mut Vec<f32>) -> Result<()> {
    weight.with_values(|own| view::fill_rows(own, dropped, &target.rows, values))?;
    check_finite(values).map_err(|error| error.at(&weight.path))
}

/// Writes the new decisions into the state of each parameter.
struct Renewer<'a> {
    renewed: BTreeMap<String, Renewed>,
    rules: Rules<'a>,
    targets: &'a BTreeMap<String, RuleTarget>,
    step: usize,
    trail: Trail,
}

impl Renewer<'_> {
    /// Returns the rules of the visited parameter, and the name of the field.
    fn field(&self) -> Option<(&RuleTarget, String)> {
        let (path, name, field) = self.trail.reparameterized()?;
        Some((self.targets.get(&path).filter(|_| name == Attached::NAME)?, field))
    }

    /// Returns the new decision about the visited parameter, and the name of the field.
    fn renewed(&self) -> Option<(&Renewed, String)> {
        let (target, field) = self.field()?;
        Some((self.renewed.get(&target.main)?, field))
    }
}

impl ModuleMapper for Renewer<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let Some((target, _)) = self.field().filter(|(_, field)| field == "form") else { return param };
        let form = target.quantize.map(|rule| Form::of(&self.rules.quantize[rule].scheme_for(target.rows.n_cols)));
        let (axis, step, device) = (target.rows.axis, self.step, param.lazy_device());
        param.map(|_| form_tensor(form.as_ref(), axis, step, &device).reshape([-1; D]))
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.renewed().and_then(|(renewed, _)| renewed.dropped.clone()) {
            Some(dropped) => param.map(|_| dropped.reshape([-1; D])),
            None => param,
        }
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some((renewed, field)) = self.renewed() else { return param };
        let numbers = match field.as_str() {
            "scale" => &renewed.scale,
            "rounded" => &renewed.rounded,
            _ => &renewed.zero,
        };
        match numbers {
            // Only asymmetric grids have zero points.
            Some(numbers) if numbers.len() == param.lazy_shape().num_elements() => replaced(param, |_| numbers.clone()),
            _ => param,
        }
    }
}
