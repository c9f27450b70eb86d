//! Rules for a module, and how they are attached.

use crate::attached::RequestedRules;
use crate::form::Form;
use crate::live::{attached_rules, last_step};
use crate::record::{load_any, read_record};
use crate::recurrent::check_computes_in;
use crate::refresh::{Moment, refresh};
use crate::rules::{RuleTarget, Rules};
use crate::{Attached, Kind, Parameter, Prune, Quantize, Roles, Schedule, decisions};
use briquette_core::printable::printable;
use briquette_core::{Decision, Error, Patterns, Result};
use briquette_cpu::MAX_DEPTH;
use briquette_methods::quant::Activations;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::store::RecordError;
use burn::tensor::{DType, FloatDType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// Rules for pruning and quantizing the parameters of a module, chosen by globs over their paths.
///
/// If several rules of one kind match a parameter, the last one counts. Vectors (biases, norms) are never
/// matched.
///
/// Globs skip parameters that belong to no layer of burn. [`left_alone`](Self::left_alone) and a logged warning
/// list them. Call [`roles`](Self::roles) to include them. A rule that names such a parameter without wildcards
/// treats its first axis as outputs.
///
/// A training loop needs three more lines: attach the rules, refresh them after each optimizer step, and
/// materialize the result.
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
    pub(crate) prune: Vec<Prune>,
    pub(crate) quantize: Vec<Quantize>,
    pub(crate) left: Patterns,
    roles: Roles,
    compute: Option<FloatDType>,
}

impl Compression {
    /// Returns an empty list of rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns rules that attach given decisions, by path: the inverse of [`decisions`](crate::decisions()).
    ///
    /// Weights on a trellis do not follow from their decision: attach it to the materialized module.
    ///
    /// # Errors
    /// Config: a path is not a valid glob.
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

    /// Adds a pruning rule.
    #[must_use]
    pub fn prune(mut self, rule: Prune) -> Self {
        self.prune.push(rule);
        self
    }

    /// Adds a quantization rule.
    #[must_use]
    pub fn quantize(mut self, rule: Quantize) -> Self {
        self.quantize.push(rule);
        self
    }

    /// Excludes the parameters whose path matches this glob from all rules.
    ///
    /// [`attach`](Self::attach) returns an error if the glob matches no parameter.
    ///
    /// # Errors
    /// Config: `glob` is not valid.
    pub fn leave(mut self, glob: &str) -> Result<Self> {
        self.left.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Sets the roles of parameters that belong to no layer of burn: their output axis, or that they are
    /// skipped.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// Returns the parameters that rules match but skip because their role is unknown, each with the reason.
    ///
    /// # Errors
    /// Config: a role matches no parameter.
    pub fn left_alone<M: Module>(&self, module: &M) -> Result<Vec<(String, &'static str)>> {
        Ok(self.unsure(&self.roles.parameters(module)?))
    }

    /// Casts every float parameter to this type for the computation, while the trained weights keep their own
    /// type.
    ///
    /// Use it to train f32 weights with bf16 or f16 arithmetic. Give the module inputs of the same type.
    /// Running statistics are not cast.
    ///
    /// burn's recurrent layers create their states in the device's default type. So [`attach`](Self::attach)
    /// refuses a module with recurrent layers unless the default is this type. To set the default, call
    /// `device.configure((FloatDType::BF16, IntDType::I32))` before creating the first tensor.
    #[must_use]
    pub fn compute_in(mut self, dtype: FloatDType) -> Self {
        self.compute = Some(dtype);
        self
    }

    /// Attaches masks and grids to the parameters that the rules match, at step 0.
    ///
    /// # Errors
    /// - Config: a glob matches no parameter
    /// - Config: an N:M pattern does not divide a row
    /// - Config: a mask or scales have another size than the parameter
    /// - Refused: a parameter is already reparameterized or quantized, or has weights that are not finite
    /// - Io: a device fails
    ///
    /// An error drops the module. To keep it, clone it first; cloning copies no weights.
    pub fn attach<M: Module>(&self, module: M) -> Result<M> {
        self.attach_at(module, 0)
    }

    /// Like [`attach`](Self::attach), with the schedules advanced to `step`.
    ///
    /// # Errors
    /// See [`attach`](Self::attach).
    pub fn attach_at<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let (module, targets) = self.attach_blank(module)?;
        refresh(self.rules(), &targets, module, Moment { step, since: None })
    }

    /// Attaches the rules and loads a burn record that was saved with the same rules.
    ///
    /// The record has weights, masks, scales and the step of the last decision, so [`refresh`](Self::refresh)
    /// continues from there. Nothing is decided again.
    ///
    /// Records of older versions do not store their rules. They load if their state does not contradict these
    /// rules.
    ///
    /// # Errors
    /// - Io: the file cannot be read
    /// - Config: the record is of another module or was saved with other rules
    /// - any error of [`attach`](Self::attach)
    ///
    /// An error drops the module.
    pub fn load<M: Module>(&self, module: M, record: impl AsRef<Path>) -> Result<M> {
        let (module, targets) = self.attach_blank(module)?;
        let path = record.as_ref();
        let record = read_record(path)?;
        let at = printable(&path.display().to_string());
        let (module, is_old) = load_any(module, record).map_err(|error| Error::config(misfit(error)).at(&at))?;
        if is_old {
            self.check_old(&module, &targets).map_err(|error| error.at(&at))?;
            log::warn!("{at}: an older record without its rules; assuming that it was saved with these");
        }
        Ok(module)
    }

    /// Refuses a record with masks or scales that these rules cannot produce.
    fn check_old<M: Module>(&self, module: &M, targets: &BTreeMap<String, RuleTarget>) -> Result<()> {
        for (path, decision) in decisions(module)? {
            let Some(target) = targets.get(&path) else { continue };
            let is_other_mask = |mask| target.prune.is_some_and(|rule| !self.prune[rule].makes(mask));
            let is_other_grid = |params| target.quantize.is_some_and(|rule| !self.quantize[rule].makes(params));
            if decision.mask.as_ref().is_some_and(is_other_mask) || decision.quant.as_ref().is_some_and(is_other_grid) {
                let requested = self.rules().in_words(target);
                return Err(Error::config(format!(
                    "was saved with other rules than {requested}; load it with its own rules"
                ))
                .at(path));
            }
        }
        Ok(())
    }

    /// Attaches blank states, which change nothing yet.
    fn attach_blank<M: Module>(&self, module: M) -> Result<(M, BTreeMap<String, RuleTarget>)> {
        let found = self.roles.parameters(&module)?;
        let targets = self.targets(&found)?;
        for (path, why) in self.left_alone(&module)? {
            log::warn!("{path}: skipped: {why}; set its role by Compression::roles");
        }
        self.compute.map_or(Ok(()), |dtype| check_computes_in(&module, dtype))?;
        let takes = |parameter: &&Parameter| targets.contains_key(&parameter.path) || self.casts(parameter);
        if let Some((path, name)) = found
            .iter()
            .filter(takes)
            .find_map(|parameter| Some((&parameter.path, parameter.reparameterized.as_ref()?)))
        {
            let message =
                format!("is already reparameterized by {name:?}, and burn allows only one; call materialize() first");
            return Err(Error::refused(message).at(path));
        }
        self.warn_of_depth(&targets);
        let mut attach = Attach { requested: self.all_requested(&found, &targets), ..Attach::new(self.compute) };
        let module = module.apply_reparameterization(&mut attach);
        attach.error.map_or(Ok((module, targets)), Err)
    }

    /// Returns the rules for each parameter to attach to, with the path that owns the shared state.
    fn all_requested(
        &self,
        found: &[Parameter],
        targets: &BTreeMap<String, RuleTarget>,
    ) -> BTreeMap<String, (String, RequestedRules)> {
        let requested = |parameter: &Parameter| {
            let target = targets.get(&parameter.path);
            let main = target.map_or(&parameter.path, |target| &target.main).clone();
            (target.is_some() || self.casts(parameter))
                .then(|| (parameter.path.clone(), (main, self.requested(parameter, target))))
        };
        found.iter().filter_map(requested).collect()
    }

    /// Warns about layers with more inputs than the integer kernels support.
    fn warn_of_depth(&self, targets: &BTreeMap<String, RuleTarget>) {
        for (path, target) in targets {
            let activations = target.quantize.map(|rule| self.quantize[rule].scheme.activations);
            if activations.is_some_and(|found| found != Activations::Float) && target.rows.n_cols > MAX_DEPTH {
                let n = target.rows.n_cols;
                log::warn!("{path}: activations stay floats: {n} inputs, int8 kernels support at most {MAX_DEPTH}");
            }
        }
    }

    /// Updates the decisions that are due at this step.
    ///
    /// Call it after each optimizer step, or every few steps; `step` is 1 after the first. A decision is due if
    /// its schedule had a step since the last decision, whose step the attached state stores. New decisions use
    /// the schedule's value at `step`.
    ///
    /// If nothing is due, this only compares the rules with the attached ones and, once a schedule has begun,
    /// reads one number from the device.
    ///
    /// Scores are computed from effective weights, so a dropped weight stays dropped.
    ///
    /// # Errors
    /// Config: a parameter has no rules attached, or other rules. Rules are equal if all settings for the
    /// parameter are equal, including the schedule. Custom score functions always compare as equal. See
    /// [`attach`](Self::attach) for other errors.
    pub fn refresh<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let found = self.roles.parameters(&module)?;
        let targets = self.targets(&found)?;
        self.check_attached(&module, &found, &targets)?;
        let schedules = || {
            let of_scales = self.quantize.iter().map(Quantize::schedule);
            self.prune.iter().map(|rule| rule.schedule).chain(of_scales)
        };
        // Decisions due at step 0 were made when the rules were attached.
        let may_be_due = |schedule: Schedule| schedule.last_due(step).is_some_and(|due| due > 0 || step == 0);
        if !schedules().any(may_be_due) {
            return Ok(module);
        }
        let since = last_step(&module)?;
        if !schedules().any(|schedule| schedule.is_due_since(since, step)) {
            return Ok(module);
        }
        refresh(self.rules(), &targets, module, Moment { step, since: Some(since) })
    }

    /// Refuses a module that has no rules or other rules attached.
    fn check_attached<M: Module>(
        &self,
        module: &M,
        found: &[Parameter],
        targets: &BTreeMap<String, RuleTarget>,
    ) -> Result<()> {
        let attached = attached_rules(module);
        let expected = self.all_requested(found, targets);
        for (path, (_, requested)) in &expected {
            let other = || {
                let requested =
                    targets.get(path).map_or_else(|| "no rule".to_string(), |target| self.rules().in_words(target));
                let message = format!(
                    "has other rules attached than these ({requested}); refresh it with the attached rules, or call materialize() and \
                     attach these"
                );
                Error::config(message).at(path)
            };
            match attached.get(path) {
                None => return Err(Error::config("no rules are attached; call attach() before training").at(path)),
                Some((rules, _)) if *rules != requested.rules => return Err(other()),
                Some(_) => {}
            }
        }
        match attached.keys().find(|path| !expected.contains_key(*path)) {
            Some(path) => {
                let message = "has rules attached, but these rules do not match it; refresh it with the attached rules";
                Err(Error::config(message).at(path))
            }
            None => Ok(()),
        }
    }

    fn rules(&self) -> Rules<'_> {
        Rules { prune: &self.prune, quantize: &self.quantize }
    }

    /// Returns the settings of the rules for a parameter.
    fn requested(&self, parameter: &Parameter, target: Option<&RuleTarget>) -> RequestedRules {
        let quantize = target.and_then(|target| target.quantize).map(|rule| &self.quantize[rule]);
        let rows = target.map_or_else(|| parameter.rows(), |target| target.rows);
        RequestedRules {
            rows,
            rules: self.rules().fingerprint(target),
            form: quantize.map(|rule| Form::of(&rule.scheme_for(rows.n_cols))),
            has_mask: target.is_some_and(|target| target.prune.is_some()),
            is_learned: quantize.is_some_and(|rule| rule.is_learned),
            has_trellis: quantize.is_some_and(|rule| rule.has_trellis(rows.n_cols)),
        }
    }

    /// Returns whether a parameter is cast, with or without other rules.
    fn casts(&self, parameter: &Parameter) -> bool {
        self.compute.is_some() && parameter.kind == Kind::Float && !is_running(parameter)
    }
}

/// Returns whether burn lists a running statistic as this parameter.
fn is_running(parameter: &Parameter) -> bool {
    parameter.is_norm() && ["running_mean", "running_var"].iter().any(|name| parameter.path.ends_with(name))
}

/// Returns the error message for a record that does not fit.
fn misfit(error: RecordError) -> String {
    let (RecordError::Io(message) | RecordError::Validation(message)) = error;
    let field = format!(".{}.", Attached::NAME);
    match message.contains(&field) {
        true => format!(
            "was saved with other rules; load it with them, or without rules and with allow_unused(): {message}"
        ),
        false => format!("is a record of another module: {message}"),
    }
}

/// Attaches blank states. Fields that share a parameter share its state.
struct Attach {
    requested: BTreeMap<String, (String, RequestedRules)>,
    compute: Option<FloatDType>,
    made: BTreeMap<String, Attached>,
    error: Option<Error>,
}

impl Attach {
    fn new(compute: Option<FloatDType>) -> Self {
        Self { requested: BTreeMap::new(), compute, made: BTreeMap::new(), error: None }
    }
}

impl Reparameterizer for &mut Attach {
    type Reparam = Attached;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Attached>) {
        let Some((main, requested)) = self.requested.remove(path) else { return (param, None) };
        if param.is_initialized() && matches!(param.base().dtype(), DType::QFloat(_)) {
            let message = "is already quantized by burn; attach rules to a module of floats";
            self.error.get_or_insert_with(|| Error::refused(message).at(path));
            return (param, None);
        }
        let blank = || Attached::blank(requested, self.compute, &param.lazy_device());
        let attached = self.made.entry(main).or_insert_with(blank).clone();
        (param, Some(attached))
    }
}
