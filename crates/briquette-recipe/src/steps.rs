//! Schemes in the place of those whose steps were to be found.

use crate::quantize::QuantizeStage;
use crate::raw::{RawOverride, RawQuantize, StageKeys};
use crate::recipe::Recipe;
use crate::stage::Stage;
use briquette_core::pattern::Patterns;
use briquette_core::{Error, Result};
use briquette_quant::Scheme;

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
        recipe.asked.output.storage = Some("entropy".into());
        let (idle, running): (Vec<&GivenScheme>, Vec<&GivenScheme>) = schemes.iter().partition(|given| given.is_idle);
        for stage in &mut recipe.stages {
            if let Stage::Quantize(stage) = stage {
                close(&mut stage.scheme);
                stage.overrides.iter_mut().for_each(|(_, scheme)| close(scheme));
                for given in &running {
                    stage.overrides.push((Patterns::new([glob_of(&given.name)])?, scheme_of(given)?));
                }
                stage.selection.exclude.extend(Patterns::new(idle.iter().map(|given| glob_of(&given.name)))?)?;
            }
        }
        for stage in &mut recipe.asked.stage {
            if let StageKeys::Quantize(keys) = &mut stage.keys {
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
