//! The rules for a module, and attaching them.

use crate::attached::Asked;
use crate::form::Form;
use crate::live::last_step;
use crate::recurrent::check_computes_in;
use crate::refresh::{Moment, refresh};
use crate::rules::{Chosen, RuleTarget, Rules};
use crate::{Attached, Kind, Parameter, Prune, Quantize, Roles, Schedule, parameters};
use briquette_core::pattern::nearest;
use briquette_core::printable::printable;
use briquette_core::{Decision, Error, ErrorKind, Grouping, OutputAxis, Patterns, Result, Role, Rows};
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::store::RecordError;
use burn::tensor::{FloatDType, Tensor};
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
    prune: Vec<Prune>,
    quantize: Vec<Quantize>,
    left: Patterns,
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
        let found = self.roles.parameters(module)?;
        let is_left = |parameter: &&Parameter| is_eligible(parameter) && self.is_unsure(parameter);
        Ok(found.iter().filter(is_left).map(|parameter| (parameter.path.clone(), parameter.why)).collect())
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
    /// parameter's size; Refused where a parameter is reparameterized already or has weights that are not finite, Io where a
    /// device fails. The module is gone with an error: clone it before (which copies nothing) to keep it.
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
    /// # Errors
    /// Those of [`attach`](Self::attach); Io where the file cannot be read, Config where it is of another module or was saved with other
    /// rules. The module is gone with an error.
    pub fn load<M: Module>(&self, module: M, record: impl AsRef<Path>) -> Result<M> {
        let (module, _) = self.attach_blank(module)?;
        module.try_load_file(record.as_ref()).map_err(|error| {
            let at = printable(&record.as_ref().display().to_string());
            match error {
                RecordError::Io(_) => Error { kind: ErrorKind::Io, ..Error::bug(error.to_string()) }.at(at),
                RecordError::Validation(message) => Error::config(misfit(&message)).at(at),
            }
        })
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
        let asked =
            |parameter: &Parameter| (parameter.path.clone(), self.asked(parameter, targets.get(&parameter.path)));
        let asked = found.iter().filter(takes).map(asked).collect();
        let module = module.apply_reparameterization(Attach { asked, compute: self.compute });
        Ok((module, targets))
    }

    /// Renews the decisions that are due after this many steps of the optimizer: call it after each step, with 1 after the first, or
    /// every few. A decision is due if a step of its rule's schedule came since something was decided last, which the attached
    /// state keeps; what is decided is as of this step. Where nothing is due, nothing happens but that this step is read from the
    /// device, one number, once a schedule has begun.
    ///
    /// Scores are those of effective weights, so a dropped weight stays dropped.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn refresh<M: Module>(&self, module: M, step: usize) -> Result<M> {
        let schedules = || {
            let of_scales = self.quantize.iter().map(Quantize::schedule);
            self.prune.iter().map(|rule| rule.schedule).chain(of_scales)
        };
        // What came due at step 0 was decided when the rules were attached.
        let may_be_due = |schedule: Schedule| schedule.last_due(step).is_some_and(|due| due > 0 || step == 0);
        if !schedules().any(may_be_due) {
            return Ok(module);
        }
        let targets = self.targets(&self.roles.parameters(&module)?)?;
        if let Some(path) = self.not_attached(&targets, &module) {
            return Err(Error::config("nothing is attached to it; call attach() before training").at(path));
        }
        let since = last_step(&module)?;
        if !schedules().any(|schedule| schedule.is_due_since(since, step)) {
            return Ok(module);
        }
        refresh(self.rules(), &targets, module, Moment { step, since: Some(since) })
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

    /// What the rules ask of a parameter.
    fn asked(&self, parameter: &Parameter, target: Option<&RuleTarget>) -> Asked {
        let quantize = target.and_then(|target| target.quantize).map(|rule| &self.quantize[rule]);
        Asked {
            rows: parameter.rows(),
            form: quantize.map(|rule| Form::of(&rule.scheme_for(parameter.rows().n_cols))),
            has_mask: target.is_some_and(|target| target.prune.is_some()),
            is_learned: quantize.is_some_and(|rule| rule.is_learned),
        }
    }

    /// Whether a parameter is to be cast, whatever else is done to it.
    fn casts(&self, parameter: &Parameter) -> bool {
        self.compute.is_some() && parameter.kind == Kind::Float && !is_running(parameter)
    }

    /// The rules that apply to each parameter that any of them matches.
    fn targets(&self, found: &[Parameter]) -> Result<BTreeMap<String, RuleTarget>> {
        let eligible = |parameter: &&Parameter| is_eligible(parameter) && !self.is_unsure(parameter);
        let paths = found.iter().filter(eligible).map(|parameter| parameter.path.as_str());
        let all = found.iter().map(|parameter| parameter.path.as_str());
        let rules = self.prune.iter().map(|rule| (&rule.schedule, &rule.chosen));
        for (schedule, chosen) in rules.chain(self.quantize.iter().map(|rule| (&rule.schedule, &rule.chosen))) {
            schedule.check()?;
            chosen.unused(paths.clone(), all.clone()).map_or(Ok(()), |glob| Err(matches_nothing(glob, found)))?;
        }
        self.left.unused(all).map_or(Ok(()), |glob| Err(matches_nothing(glob, found)))?;
        let mut targets = BTreeMap::new();
        let is_touched = |(_, parameter): &(usize, &Parameter)| {
            !self.left.matches(&parameter.path) && parameter.role != Role::Parameter
        };
        for (index, parameter) in found.iter().filter(eligible).enumerate().filter(is_touched) {
            let prune = self.prune.iter().rposition(|rule| rule.chosen.matches(&parameter.path));
            let quantize = self.quantize.iter().rposition(|rule| rule.chosen.matches(&parameter.path));
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
        let Some(rule) = target.quantize.map(|rule| &self.quantize[rule]) else { return Ok(()) };
        if target.rows.axis == OutputAxis::Second
            && matches!(rule.scheme_for(n_cols).weights.grouping, Grouping::Group(_))
        {
            let message =
                "groups of inputs are not kept of a transposed convolution; take a scheme with a scale for each output";
            return Err(Error::config(message));
        }
        rule.check(n_rows, n_cols)
    }

    /// Whether rules match a parameter of which nothing shows what it is: only by its very path it is meant.
    fn is_unsure(&self, parameter: &Parameter) -> bool {
        let chosen = || self.prune.iter().map(|rule| &rule.chosen).chain(self.quantize.iter().map(|rule| &rule.chosen));
        let matched = |chosen: &Chosen| chosen.matches(&parameter.path);
        let is_left = self.left.matches(&parameter.path);
        parameter.role == Role::Unknown
            && !is_left
            && chosen().any(matched)
            && !chosen().any(|chosen| chosen.included.names_exactly(&parameter.path))
    }
}

/// Whether this is what rules are for: floats of two axes or more.
fn is_eligible(parameter: &Parameter) -> bool {
    parameter.kind == Kind::Float && parameter.shape.rank() >= 2
}

/// The error for a glob over paths that matches no weights.
fn matches_nothing(glob: &str, found: &[Parameter]) -> Error {
    let paths = || found.iter().map(|parameter| parameter.path.as_str());
    let only = Patterns::new([glob]).is_ok_and(|patterns| patterns.unused(paths()).is_none());
    let matches = |path: &str| Patterns::new([glob]).is_ok_and(|patterns| patterns.matches(path));
    let is_unsure =
        |parameter: &&Parameter| is_eligible(parameter) && parameter.role == Role::Unknown && matches(&parameter.path);
    let unsure = found.iter().find(is_unsure);
    let what = match (only, nearest(glob, paths())) {
        (true, _) if unsure.is_some() => {
            let (path, why) = unsure.map_or(("", ""), |parameter| (&parameter.path, parameter.why));
            format!("matches only what is not known, such as {path:?}: {why}; say what it is by Compression::roles")
        }
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

/// What is said of a record that does not fit.
fn misfit(message: &str) -> String {
    let field = format!(".{}.", Attached::NAME);
    match message.contains(&field) {
        true => format!("was saved with other rules; load it with those, or with none and allow_unused(): {message}"),
        false => format!("was saved of another module: {message}"),
    }
}

struct Attach {
    asked: BTreeMap<String, Asked>,
    compute: Option<FloatDType>,
}

impl Reparameterizer for Attach {
    type Reparam = Attached;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Attached>) {
        let attached = self.asked.get(path).map(|asked| Attached::blank(*asked, self.compute, &param.lazy_device()));
        (param, attached)
    }
}
