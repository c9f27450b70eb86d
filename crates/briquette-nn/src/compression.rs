//! The rules for a module, and attaching them.

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

/// Rules for pruning and rounding the parameters of a module, chosen by glob over their paths. Of several rules of one kind that
/// match a parameter, the last counts. Vectors (biases, normalisations) are never matched.
///
/// Parameters that belong to no layer of burn's are left alone, whatever globs match them, and named by
/// [`left_alone`](Self::left_alone) and a logged warning, until [`roles`](Self::roles) say what they are; a rule that names a parameter
/// without wildcards takes it as rows of its first axis.
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
    pub(crate) prune: Vec<Prune>,
    pub(crate) quantize: Vec<Quantize>,
    pub(crate) left: Patterns,
    roles: Roles,
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

    /// Leaves the parameters alone whose path matches this glob, whatever rules match them: they are neither pruned nor rounded.
    ///
    /// # Errors
    /// Config, where `glob` is not a valid glob. Where it matches no parameter, [`attach`](Self::attach) says so.
    pub fn leave(mut self, glob: &str) -> Result<Self> {
        self.left.extend(Patterns::new([glob])?)?;
        Ok(self)
    }

    /// Says what parameters are that nothing shows: which of their axes counts outputs, or that they are to be left alone.
    #[must_use]
    pub fn roles(mut self, roles: Roles) -> Self {
        self.roles = roles;
        self
    }

    /// The parameters that rules match and that are left alone, since nothing shows what they are, each with the reason.
    ///
    /// # Errors
    /// Config, where roles match nothing.
    pub fn left_alone<M: Module>(&self, module: &M) -> Result<Vec<(String, &'static str)>> {
        Ok(self.unsure(&self.roles.parameters(module)?))
    }

    /// Lets the module compute with every float parameter in this type, while the trained weights keep their own: bf16 or f16 compute
    /// over f32 weights. Give the module inputs of the same type. Running statistics are not parameters and stay as they are.
    ///
    /// burn's recurrent layers make their states in the device's default type whatever their inputs are, so [`attach`](Self::attach) refuses
    /// a module that has any, unless the default is this type: `device.configure((FloatDType::BF16, IntDType::I32))` before the first
    /// tensor makes it so.
    #[must_use]
    pub fn compute_in(mut self, dtype: FloatDType) -> Self {
        self.compute = Some(dtype);
        self
    }

    /// Attaches masks and grids to the parameters that the rules match, as of step 0.
    ///
    /// # Errors
    /// Config where a glob matches nothing, a pattern does not divide a row, or a mask or scales are not of the
    /// parameter's size; Refused where a parameter is reparameterized or quantized already or has weights that are not finite, Io
    /// where a device fails. The module is gone with an error: clone it before (which copies nothing) to keep it.
    pub fn attach<M: Module>(&self, module: M) -> Result<M> {
        self.attach_at(module, 0)
    }

    /// As [`attach`](Self::attach), with every rule that has begun by this step applied as at that step.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_at<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let (module, targets) = self.attach_blank(module)?;
        refresh(self.rules(), &targets, module, Moment { step, since: None })
    }

    /// Attaches the rules and loads a record of burn's that was saved with the same ones: weights, masks, scales, and the step after
    /// which something was decided last, so that [`refresh`](Self::refresh) goes on from there. Nothing is decided anew.
    ///
    /// Records that older versions saved do not say which rules they belong to. They load where nothing in them contradicts these.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach); Io where the file cannot be read, Config where it is of another module or was saved with other
    /// rules. The module is gone with an error.
    pub fn load<M: Module>(&self, module: M, record: impl AsRef<Path>) -> Result<M> {
        let (module, targets) = self.attach_blank(module)?;
        let path = record.as_ref();
        let record = read_record(path)?;
        let at = printable(&path.display().to_string());
        let (module, is_old) = load_any(module, record).map_err(|error| Error::config(misfit(error)).at(&at))?;
        if is_old {
            self.check_old(&module, &targets).map_err(|error| error.at(&at))?;
            log::warn!("{at}: does not say which rules it was saved with; these are taken for them");
        }
        Ok(module)
    }

    /// Refuses masks and scales of a record that these rules never make.
    fn check_old<M: Module>(&self, module: &M, targets: &BTreeMap<String, RuleTarget>) -> Result<()> {
        for (path, decision) in decisions(module)? {
            let Some(target) = targets.get(&path) else { continue };
            let is_other_mask = |mask| target.prune.is_some_and(|rule| !self.prune[rule].makes(mask));
            let is_other_grid = |params| target.quantize.is_some_and(|rule| !self.quantize[rule].makes(params));
            if decision.mask.as_ref().is_some_and(is_other_mask) || decision.quant.as_ref().is_some_and(is_other_grid) {
                let asked = self.rules().in_words(target);
                return Err(
                    Error::config(format!("was saved with other rules than {asked}; load it with those")).at(path)
                );
            }
        }
        Ok(())
    }

    /// Attaches states that change nothing yet.
    fn attach_blank<M: Module>(&self, module: M) -> Result<(M, BTreeMap<String, RuleTarget>)> {
        let found = self.roles.parameters(&module)?;
        let targets = self.targets(&found)?;
        for (path, why) in self.left_alone(&module)? {
            log::warn!("{path} is left alone: {why}; say what it is by Compression::roles");
        }
        self.compute.map_or(Ok(()), |dtype| check_computes_in(&module, dtype))?;
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
        self.warn_of_depth(&targets);
        let mut attach = Attach { asked: self.all_asked(&found, &targets), ..Attach::new(self.compute) };
        let module = module.apply_reparameterization(&mut attach);
        attach.error.map_or(Ok((module, targets)), Err)
    }

    /// The rules for each parameter that something is attached to, and the path that shares its state.
    fn all_asked(
        &self,
        found: &[Parameter],
        targets: &BTreeMap<String, RuleTarget>,
    ) -> BTreeMap<String, (String, RequestedRules)> {
        let asked = |parameter: &Parameter| {
            let target = targets.get(&parameter.path);
            let main = target.map_or(&parameter.path, |target| &target.main).clone();
            (target.is_some() || self.casts(parameter))
                .then(|| (parameter.path.clone(), (main, self.asked(parameter, target))))
        };
        found.iter().filter_map(asked).collect()
    }

    /// Warns of layers whose activations no integer kernel takes.
    fn warn_of_depth(&self, targets: &BTreeMap<String, RuleTarget>) {
        for (path, target) in targets {
            let activations = target.quantize.map(|rule| self.quantize[rule].scheme.activations);
            if activations.is_some_and(|found| found != Activations::Float) && target.rows.n_cols > MAX_DEPTH {
                let n = target.rows.n_cols;
                log::warn!(
                    "{path}: its activations stay floats, as {n} inputs are more than the {MAX_DEPTH} of int8 kernels"
                );
            }
        }
    }

    /// Renews the decisions that are due after this many steps of the optimizer: call it after each step, with 1 after the first, or
    /// every few. A decision is due if a step of its rule's schedule came since something was decided last, which the attached
    /// state keeps; what is decided is as of this step. Where nothing is due, nothing happens but that the rules are compared with
    /// those attached, and that this step is read from the device, one number, once a schedule has begun.
    ///
    /// Scores are those of effective weights, so a dropped weight stays dropped.
    ///
    /// # Errors
    /// See [`attach`](Self::attach). Config where nothing, or other rules, are attached to a parameter: rules are the same if all that
    /// they say of the parameter is the same, its schedule too. Scores of one's own are taken for the same.
    pub fn refresh<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let found = self.roles.parameters(&module)?;
        let targets = self.targets(&found)?;
        self.check_attached(&module, &found, &targets)?;
        let schedules = || {
            let of_scales = self.quantize.iter().map(Quantize::schedule);
            self.prune.iter().map(|rule| rule.schedule).chain(of_scales)
        };
        // What came due at step 0 was decided when the rules were attached.
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

    /// Refuses a module to which nothing is attached, or what other rules ask.
    fn check_attached<M: Module>(
        &self,
        module: &M,
        found: &[Parameter],
        targets: &BTreeMap<String, RuleTarget>,
    ) -> Result<()> {
        let attached = attached_rules(module);
        let expected = self.all_asked(found, targets);
        for (path, (_, asked)) in &expected {
            let other = || {
                let asked =
                    targets.get(path).map_or_else(|| "no rule".to_string(), |target| self.rules().in_words(target));
                let message = format!(
                    "other rules are attached to it than these ({asked}); refresh it with the rules that were attached, or \
                     call materialize() and attach these"
                );
                Error::config(message).at(path)
            };
            match attached.get(path) {
                None => return Err(Error::config("nothing is attached to it; call attach() before training").at(path)),
                Some((rules, _)) if *rules != asked.rules => return Err(other()),
                Some(_) => {}
            }
        }
        match attached.keys().find(|path| !expected.contains_key(*path)) {
            Some(path) => {
                let message = "rules are attached to it, and these have none for it; refresh it with the rules that were attached";
                Err(Error::config(message).at(path))
            }
            None => Ok(()),
        }
    }

    fn rules(&self) -> Rules<'_> {
        Rules { prune: &self.prune, quantize: &self.quantize }
    }

    /// What the rules ask of a parameter.
    fn asked(&self, parameter: &Parameter, target: Option<&RuleTarget>) -> RequestedRules {
        let quantize = target.and_then(|target| target.quantize).map(|rule| &self.quantize[rule]);
        let rows = target.map_or_else(|| parameter.rows(), |target| target.rows);
        RequestedRules {
            rows,
            rules: self.rules().fingerprint(target),
            form: quantize.map(|rule| Form::of(&rule.scheme_for(rows.n_cols))),
            has_mask: target.is_some_and(|target| target.prune.is_some()),
            is_learned: quantize.is_some_and(|rule| rule.is_learned),
        }
    }

    /// Whether a parameter is to be cast, whatever else is done to it.
    fn casts(&self, parameter: &Parameter) -> bool {
        self.compute.is_some() && parameter.kind == Kind::Float && !is_running(parameter)
    }
}

/// Whether this is a running statistic: not a parameter, though burn lists it as one.
fn is_running(parameter: &Parameter) -> bool {
    parameter.is_norm() && ["running_mean", "running_var"].iter().any(|name| parameter.path.ends_with(name))
}

/// What is said of a record that does not fit.
fn misfit(error: RecordError) -> String {
    let (RecordError::Io(message) | RecordError::Validation(message)) = error;
    let field = format!(".{}.", Attached::NAME);
    match message.contains(&field) {
        true => format!("was saved with other rules; load it with those, or with none and allow_unused(): {message}"),
        false => format!("was saved of another module: {message}"),
    }
}

/// Attaches blank states. Fields that share a parameter share its state.
struct Attach {
    asked: BTreeMap<String, (String, RequestedRules)>,
    compute: Option<FloatDType>,
    made: BTreeMap<String, Attached>,
    error: Option<Error>,
}

impl Attach {
    fn new(compute: Option<FloatDType>) -> Self {
        Self { asked: BTreeMap::new(), compute, made: BTreeMap::new(), error: None }
    }
}

impl Reparameterizer for &mut Attach {
    type Reparam = Attached;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Attached>) {
        let Some((main, asked)) = self.asked.remove(path) else { return (param, None) };
        if param.is_initialized() && matches!(param.base().dtype(), DType::QFloat(_)) {
            let message = "is quantized by burn; attach rules to a module of floats";
            self.error.get_or_insert_with(|| Error::refused(message).at(path));
            return (param, None);
        }
        let blank = || Attached::blank(asked, self.compute, &param.lazy_device());
        let attached = self.made.entry(main).or_insert_with(blank).clone();
        (param, Some(attached))
    }
}
