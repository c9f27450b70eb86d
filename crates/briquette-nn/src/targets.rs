//! Matches rules with parameters.

use crate::rules::{ChosenPaths, RuleTarget};
use crate::{Compression, Kind, Parameter};
use briquette_core::pattern::nearest;
use briquette_core::{Error, Grouping, OutputAxis, Patterns, Result, Role, Rows};
use std::collections::BTreeMap;

/// All fields that hold one parameter; more than one if a module shares it.
pub(crate) struct Names<'a>(Vec<&'a Parameter>);

impl<'a> Names<'a> {
    /// Returns the parameters that rules can apply to, each with all its fields, in module order.
    pub(crate) fn of(found: &'a [Parameter]) -> Vec<Self> {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        let mut all: Vec<Self> = Vec::new();
        for parameter in found.iter().filter(|parameter| is_eligible(parameter)) {
            let place = *places.entry(parameter.first_path()).or_insert(all.len());
            match all.get_mut(place) {
                Some(names) => names.0.push(parameter),
                None => all.push(Self(vec![parameter])),
            }
        }
        all
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &'a str> + Clone + '_ {
        self.0.iter().map(|parameter| parameter.path.as_str())
    }

    pub(crate) fn parameters(&self) -> &[&'a Parameter] {
        &self.0
    }

    /// Returns the field with a known role, or else the first.
    pub(crate) fn main(&self) -> &'a Parameter {
        self.0.iter().find(|parameter| parameter.role != Role::Unknown).unwrap_or(&self.0[0])
    }

    /// Returns whether a rule applies; it then applies to all fields of the parameter.
    fn are_chosen(&self, chosen: &ChosenPaths) -> bool {
        chosen.chooses(self.paths())
    }

    fn are_matched(&self, patterns: &Patterns) -> bool {
        self.paths().any(|path| patterns.matches(path))
    }
}

impl Compression {
    /// Returns the rules for each parameter that any of them matches.
    pub(crate) fn targets(&self, found: &[Parameter]) -> Result<BTreeMap<String, RuleTarget>> {
        let known: Vec<Names> = Names::of(found).into_iter().filter(|names| !self.are_unsure(names)).collect();
        self.check_used(&known, found)?;
        let mut targets = BTreeMap::new();
        let is_touched = |(_, names): &(usize, &Names)| {
            !names.are_matched(&self.left) && names.0.iter().all(|parameter| parameter.role != Role::Parameter)
        };
        for (index, names) in known.iter().enumerate().filter(is_touched) {
            let prune = self.prune.iter().rposition(|rule| names.are_chosen(&rule.chosen));
            let quantize = self.quantize.iter().rposition(|rule| names.are_chosen(&rule.chosen));
            if prune.is_some() || quantize.is_some() {
                let main = names.main();
                let layer = main.path.strip_suffix(".weight").unwrap_or(&main.path).to_string();
                let target = RuleTarget { layer, main: main.path.clone(), rows: main.rows(), prune, quantize, index };
                self.check(&target).map_err(|error| error.at(&main.path))?;
                targets.extend(names.paths().map(|path| (path.to_string(), target.clone())));
            }
        }
        Ok(targets)
    }

    /// Returns the parameters that rules match but skip because their role is unknown, each with the reason.
    pub(crate) fn unsure(&self, found: &[Parameter]) -> Vec<(String, &'static str)> {
        let unsure = Names::of(found).into_iter().filter(|names| self.are_unsure(names));
        let each = |names: Names| names.0.iter().map(|one| (one.path.clone(), one.why)).collect::<Vec<_>>();
        unsure.flat_map(each).collect()
    }

    /// Refuses schedules that are never due, and globs that match nothing.
    fn check_used(&self, known: &[Names], found: &[Parameter]) -> Result<()> {
        let paths = known.iter().flat_map(Names::paths);
        let all = found.iter().map(|parameter| parameter.path.as_str());
        let rules = self.prune.iter().map(|rule| (&rule.schedule, &rule.chosen));
        for (schedule, chosen) in rules.chain(self.quantize.iter().map(|rule| (&rule.schedule, &rule.chosen))) {
            schedule.check()?;
            chosen.unused(paths.clone(), all.clone()).map_or(Ok(()), |glob| Err(matches_nothing(glob, found)))?;
        }
        self.left.unused(all).map_or(Ok(()), |glob| Err(matches_nothing(glob, found)))
    }

    /// Refuses rules that do not fit the rows of a parameter.
    fn check(&self, target: &RuleTarget) -> Result<()> {
        let Rows { n_rows, n_cols, .. } = target.rows;
        target.prune.map_or(Ok(()), |rule| self.prune[rule].check(&target.layer, n_rows, n_cols))?;
        let Some(rule) = target.quantize.map(|rule| &self.quantize[rule]) else { return Ok(()) };
        let grouping = rule.scheme_for(n_cols).weights.grouping;
        if target.rows.axis == OutputAxis::Second && matches!(grouping, Grouping::Group(_)) {
            let message =
                "transposed convolutions do not support groups of inputs; use a scheme with one scale per output";
            return Err(Error::config(message));
        }
        if target.prune.is_some() && rule.has_trellis(n_cols) {
            let message = "is pruned, and codes on a trellis cannot all be zero; remove -trellis from the scheme";
            return Err(Error::config(message));
        }
        rule.check(n_rows, n_cols)
    }

    /// Returns whether rules match a parameter of unknown role by wildcards only; a rule with its full path
    /// includes it.
    fn are_unsure(&self, names: &Names) -> bool {
        let chosen = || self.prune.iter().map(|rule| &rule.chosen).chain(self.quantize.iter().map(|rule| &rule.chosen));
        let is_named = |chosen: &ChosenPaths| names.paths().any(|path| chosen.included.names_exactly(path));
        names.0.iter().all(|parameter| parameter.role == Role::Unknown)
            && !names.are_matched(&self.left)
            && chosen().any(|chosen| names.are_chosen(chosen))
            && !chosen().any(is_named)
    }
}

/// Returns whether rules can apply: floats with at least two axes.
fn is_eligible(parameter: &Parameter) -> bool {
    parameter.kind == Kind::Float && parameter.shape.rank() >= 2
}

/// Returns the error for a glob that matches no weights.
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
            format!(
                "matches only parameters of unknown role, such as {path:?}: {why}; set their role by Compression::roles"
            )
        }
        (true, _) => "matches only vectors or integers, which are neither pruned nor quantized".to_string(),
        (false, Some(path)) => format!("matches no parameter; the nearest name is {path:?}"),
        (false, None) => "matches no parameter".into(),
    };
    Error::config(format!("pattern {glob:?} {what}; briquette_nn::parameters lists all parameters"))
}
