//! The rules for a module, and attaching them.

use crate::form::Form;
use crate::refresh::refresh;
use crate::rules::{RuleTarget, Rules};
use crate::{Attached, Kind, Parameter, Prune, Quantize, parameters};
use briquette_core::pattern::nearest;
use briquette_core::{Decision, Error, Patterns, Result, Rows};
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeMap;

/// Rules for pruning and rounding the parameters of a module, chosen by glob over their paths. Of several rules of one kind that
/// match a parameter, the last counts. Vectors (biases, normalisations) are never matched.
///
/// Three lines change in a training loop: one makes the rules and attaches them, one follows each step of the optimizer, and one ends
/// the training.
///
/// ```no_run
/// use briquette_nn::{Compression, Prune, Schedule};
/// # fn train<M: burn::module::Module>(mut model: M, step: impl Fn(M) -> M) -> briquette_core::Result<M> {
/// let rules = Compression::new().prune(Prune::new("**.weight", 0.9)?.globally().on(Schedule::cubic(0..300).every(10)));
/// model = rules.attach(model)?;
/// for t in 1..=400 {
///     model = step(model); // forward, backward, optimizer: as before
///     model = rules.refresh(model, t)?;
/// }
/// Ok(model.materialize())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Compression {
    prune: Vec<Prune>,
    quantize: Vec<Quantize>,
    compute: Option<FloatDType>,
}

impl Compression {
    /// An empty list of rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rules that attach given decisions, by path: the inverse of [`decisions`](crate::decisions()).
    ///
    /// # Errors
    /// Config, where a path is no glob.
    pub fn of(decisions: &BTreeMap<String, Decision>) -> Result<Self> {
        let mut rules = Self::new();
        for (path, Decision { mask, quant }) in decisions {
            if let Some(mask) = mask {
                rules = rules.prune(Prune::outside(path, mask.clone())?);
            }
            if let Some(params) = quant {
                rules = rules.quantize(Quantize::on_grid(path, params.clone())?);
            }
        }
        Ok(rules)
    }

    /// Adds a rule for pruning.
    #[must_use]
    pub fn prune(mut self, rule: Prune) -> Self {
        self.prune.push(rule);
        self
    }

    /// Adds a rule for rounding.
    #[must_use]
    pub fn quantize(mut self, rule: Quantize) -> Self {
        self.quantize.push(rule);
        self
    }

    /// Lets the module compute with every float parameter in this type, while the trained weights keep their own: bf16 or f16 compute
    /// over f32 weights. Give the module inputs of the same type. Running statistics are not parameters and stay as they are.
    #[must_use]
    pub fn compute_in(mut self, dtype: FloatDType) -> Self {
        self.compute = Some(dtype);
        self
    }

    /// Attaches masks and grids to the parameters that the rules match, as of step 0.
    ///
    /// # Errors
    /// Config where a pattern matches nothing, a group does not divide a row, or a mask or scales are not of the
    /// parameter's size; Refused where a parameter is reparameterized already or has weights that are not finite, Io where a
    /// device fails. The module is gone with an error: clone it before (which copies nothing) to keep it.
    pub fn attach<M: Module>(&self, module: M) -> Result<M> {
        self.attach_at(module, 0)
    }

    /// As [`attach`](Self::attach), with every rule that has begun by this step applied as at that step: use it to load a record
    /// that was saved then.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_at<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let found = parameters(&module);
        let targets = self.targets(&found)?;
        let takes = |parameter: &&Parameter| targets.contains_key(&parameter.path) || self.casts(parameter);
        if let Some((path, name)) = found
            .iter()
            .filter(takes)
            .find_map(|parameter| Some((&parameter.path, parameter.reparameterized.as_ref()?)))
        {
            let message =
                format!("is reparameterized already ({name:?}), and burn allows one; call materialize() first");
            return Err(Error::refused(message).at(path));
        }
        let rows = found.iter().filter(takes).map(|parameter| (parameter.path.clone(), parameter.rows())).collect();
        let module = module.apply_reparameterization(Attach { rules: self, targets: &targets, rows });
        refresh(self.rules(), &targets, module, step, true)
    }

    /// Renews the decisions that are due after this many steps of the optimizer: call it after each step, with 1 after the first.
    /// Where nothing is due, nothing happens.
    ///
    /// Scores are those of effective weights, so a dropped weight stays dropped.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn refresh<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let is_due = self.prune.iter().any(|rule| rule.schedule.is_due(step))
            || self.quantize.iter().any(|rule| rule.schedule.is_due(step));
        if !is_due {
            return Ok(module);
        }
        let targets = self.targets(&parameters(&module))?;
        if let Some(path) = self.not_attached(&targets, &module) {
            return Err(Error::config("nothing is attached to it; call attach() before training").at(path));
        }
        refresh(self.rules(), &targets, module, step, false)
    }

    fn rules(&self) -> Rules<'_> {
        Rules { prune: &self.prune, quantize: &self.quantize }
    }

    fn not_attached<M: Module>(&self, targets: &BTreeMap<String, RuleTarget>, module: &M) -> Option<String> {
        let is_bare = |parameter: &Parameter| {
            targets.contains_key(&parameter.path) && parameter.reparameterized.as_deref() != Some(Attached::NAME)
        };
        parameters(module).into_iter().find(is_bare).map(|parameter| parameter.path)
    }

    /// Whether a parameter is to be cast, whatever else is done to it.
    fn casts(&self, parameter: &Parameter) -> bool {
        self.compute.is_some() && parameter.kind == Kind::Float && !is_running(parameter)
    }

    /// The rules that apply to each parameter that any of them matches.
    fn targets(&self, found: &[Parameter]) -> Result<BTreeMap<String, RuleTarget>> {
        let eligible = |parameter: &&Parameter| parameter.kind == Kind::Float && parameter.shape.rank() >= 2;
        let paths = found.iter().filter(eligible).map(|parameter| parameter.path.as_str());
        let rules = self.prune.iter().map(|rule| (&rule.schedule, &rule.patterns));
        for (schedule, patterns) in rules.chain(self.quantize.iter().map(|rule| (&rule.schedule, &rule.patterns))) {
            schedule.check()?;
            patterns.unused(paths.clone()).map_or(Ok(()), |glob| Err(matches_nothing(glob, found)))?;
        }
        let mut targets = BTreeMap::new();
        for (index, parameter) in found.iter().filter(eligible).enumerate() {
            let prune = self.prune.iter().rposition(|rule| rule.patterns.matches(&parameter.path));
            let quantize = self.quantize.iter().rposition(|rule| rule.patterns.matches(&parameter.path));
            if prune.is_some() || quantize.is_some() {
                let layer = parameter.path.strip_suffix(".weight").unwrap_or(&parameter.path).to_string();
                let target = RuleTarget { layer, rows: parameter.rows(), prune, quantize, index };
                self.check(&target).map_err(|error| error.at(&parameter.path))?;
                targets.insert(parameter.path.clone(), target);
            }
        }
        Ok(targets)
    }

    /// Refuses rules that do not fit the rows of a parameter.
    fn check(&self, target: &RuleTarget) -> Result<()> {
        let Rows { n_rows, n_cols, .. } = target.rows;
        target.prune.map_or(Ok(()), |rule| self.prune[rule].check(&target.layer, n_rows, n_cols))?;
        target.quantize.map_or(Ok(()), |rule| self.quantize[rule].check(n_rows, n_cols))
    }
}

/// The error for a glob over paths that matches no weights.
fn matches_nothing(glob: &str, found: &[Parameter]) -> Error {
    let paths = || found.iter().map(|parameter| parameter.path.as_str());
    let only = Patterns::new([glob]).is_ok_and(|patterns| patterns.unused(paths()).is_none());
    let what = match (only, nearest(glob, paths())) {
        (true, _) => "matches only vectors and what is no float, which are neither pruned nor rounded".to_string(),
        (false, Some(path)) => format!("matches no parameter; the nearest name is {path:?}"),
        (false, None) => "matches no parameter".into(),
    };
    Error::config(format!("pattern {glob:?} {what}; briquette_nn::parameters lists all there are"))
}

/// Whether this is a running statistic: not a parameter, though burn lists it as one.
fn is_running(parameter: &Parameter) -> bool {
    parameter.is_norm() && ["running_mean", "running_var"].iter().any(|name| parameter.path.ends_with(name))
}

/// Attaches a blank state to each parameter; the first refresh fills it.
struct Attach<'a> {
    rules: &'a Compression,
    targets: &'a BTreeMap<String, RuleTarget>,
    rows: BTreeMap<String, Rows>,
}

impl Reparameterizer for Attach<'_> {
    type Reparam = Attached;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Attached>) {
        let Some(rows) = self.rows.get(path) else { return (param, None) };
        let rule = self.targets.get(path).and_then(|target| target.quantize);
        let form = rule.map(|rule| Form::of(&self.rules.quantize[rule].scheme));
        let attached = Attached::blank(*rows, form, self.rules.compute, &param.lazy_device());
        (param, Some(attached))
    }
}
