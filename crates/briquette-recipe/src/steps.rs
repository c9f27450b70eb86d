//! Schemes in the place of those whose steps were to be found.

use crate::quantize::{QuantizeStage, SCALES};
use crate::raw::{RawOverride, RawQuantize, StageKeys};
use crate::recipe::Recipe;
use crate::stage::{RecipePart, Stage, Whole};
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use briquette_quant::{Range, Rounding, Scheme};

/// The scheme of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenScheme {
    /// Its name.
    pub name: String,
    /// The scheme's.
    pub scheme: String,
    /// Whether nothing that ran has it, so that there are no inputs to round it by.
    pub is_idle: bool,
}

impl Recipe {
    /// The recipe with these schemes in the place of those whose steps were to be found. What nothing runs is rounded to the nearest, in a stage of its own.
    ///
    /// # Errors
    /// Bug, where a scheme is none.
    pub fn with_schemes(&self, schemes: &[GivenScheme]) -> Result<Self> {
        let mut recipe = Self { budget: None, ..self.clone() };
        recipe.asked.budget = None;
        recipe.asked.output.storage = recipe.codes_entropy.then(|| "entropy".into());
        let (idle, running): (Vec<&GivenScheme>, Vec<&GivenScheme>) = schemes.iter().partition(|given| given.is_idle);
        let mut scale = None;
        for stage in recipe.quantize_stages().filter(|stage| stage.is_open()) {
            let of_stage = stage.scheme.weights.scale;
            close(&mut stage.scheme);
            stage.overrides.iter_mut().for_each(|(_, scheme)| close(scheme));
            for given in &running {
                let mut scheme = scheme_of(given)?;
                if !matches!(scheme.weights.range, Range::Step(_)) {
                    (scheme.weights.scale, scale) = (of_stage, Some(of_stage));
                }
                stage.overrides.push((Patterns::new([glob_of(&given.name)])?, scheme));
            }
            stage.selection.exclude.extend(Patterns::new(idle.iter().map(|given| glob_of(&given.name)))?)?;
        }
        for stage in &mut recipe.asked.stage {
            if let StageKeys::Quantize(keys) = &mut stage.keys
                && is_open(keys)
            {
                if let Some((name, _)) = SCALES.into_iter().find(|(_, known)| Some(*known) == scale) {
                    keys.scale.get_or_insert(name.into());
                }
                close_name(&mut keys.scheme);
                keys.overrides.iter_mut().for_each(|rule| close_name(&mut rule.scheme));
                keys.overrides.extend(running.iter().map(|given| override_of(given)));
                keys.exclude.extend(idle.iter().map(|given| glob_of(&given.name)));
            }
        }
        for given in idle {
            let include = Some(vec![glob_of(&given.name)]);
            let keys = RawQuantize { scheme: Some(given.scheme.clone()), include, ..RawQuantize::default() };
            let place = recipe.asked.stage.iter().rposition(|stage| matches!(stage.keys, StageKeys::Quantize(_)));
            recipe.asked.stage.insert(place.map_or(0, |place| place + 1), StageKeys::Quantize(keys).into());
            let stage = QuantizeStage::named(&given.scheme)?.include([glob_of(&given.name)])?;
            let place = recipe.stages.iter().rposition(|stage| matches!(stage, Stage::Quantize(_)));
            recipe.stages.insert(place.map_or(0, |place| place + 1), Stage::Quantize(stage));
        }
        // What a measure ran on, nothing else may look at.
        if !recipe.asked.needs_statistics() {
            (recipe.calibration, recipe.asked.calibration) = (None, None);
        }
        Ok(recipe)
    }
}

impl Recipe {
    /// Whether it trains with steps in place that its budget is to find.
    pub fn learns_steps(&self) -> bool {
        self.budget.is_some() && self.parts.iter().any(RecipePart::learns_steps)
    }

    /// The same with weights rounded to the nearest.
    #[must_use]
    pub fn to_nearest(mut self) -> Self {
        for stage in self.quantize_stages() {
            stage.rounding = Rounding::Nearest;
        }
        for stage in &mut self.asked.stage {
            if let StageKeys::Quantize(keys) = &mut stage.keys {
                keys.round = None;
            }
        }
        if !self.asked.needs_statistics() {
            (self.calibration, self.asked.calibration) = (None, None);
        }
        self
    }

    /// The last quantize stages, and those that trainings have in place.
    fn quantize_stages(&mut self) -> impl Iterator<Item = &mut QuantizeStage> {
        let last = self.stages.iter_mut().filter_map(|stage| match stage {
            Stage::Quantize(stage) => Some(stage),
            _ => None,
        });
        let learned = self.parts.iter_mut().filter_map(|part| match &mut part.then {
            Whole::Distill(stage) => stage.quantize.as_mut(),
            Whole::Factorize(_) => None,
        });
        last.chain(learned)
    }
}

/// Whether steps of a stage are yet to be found.
fn is_open(keys: &RawQuantize) -> bool {
    let is_open = |name: &Option<String>| matches!(name.as_deref(), Some("step" | "step-dynamic"));
    is_open(&keys.scheme) || keys.overrides.iter().any(|rule| is_open(&rule.scheme))
}

fn scheme_of(given: &GivenScheme) -> Result<Scheme> {
    given.scheme.parse().map_err(|error| Error::bug(format!("{error}")))
}

fn override_of(given: &GivenScheme) -> RawOverride {
    RawOverride { include: vec![glob_of(&given.name)], sparsity: None, scheme: Some(given.scheme.clone()) }
}

/// Every tensor that would have it has a scheme of its own.
fn close(scheme: &mut Scheme) {
    if scheme.is_open() {
        *scheme = Scheme { activations: scheme.activations, ..Scheme::INT8 };
    }
}

fn close_name(name: &mut Option<String>) {
    match name.as_deref() {
        Some("step") => *name = Some("int8".into()),
        Some("step-dynamic") => *name = Some("int8-dynamic".into()),
        _ => {}
    }
}

/// A glob that matches a name: what globs mean otherwise is any character.
fn glob_of(name: &str) -> String {
    name.chars().map(|c| if "*?[]{}!\\".contains(c) { '?' } else { c }).collect()
}
