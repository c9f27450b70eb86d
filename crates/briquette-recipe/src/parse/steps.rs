//! Replaces the open step sizes of a recipe by schemes that a budget chose.

use crate::parse::choice::{prune_keys, scheme_name};
use crate::parse::kind::StageKind;
use crate::parse::prune::{PruneStage, RawPrune};
use crate::parse::quantize::{OPEN_SCHEMES, QuantizeStage, SCALES};
use crate::parse::raw::{RawOverride, RawQuantize, RawStage, StageKeys};
use crate::parse::recipe::Recipe;
use crate::parse::stage::{ModelStage, RecipePart, Stage};
use briquette_core::{Error, Result, Role};
use briquette_methods::quant::{QuantSpec, Rounding, Scheme};
use std::collections::BTreeSet;

/// The roles that a budget may prune: the same as those that it may quantize.
const PRUNED: [Role; 3] = [Role::Linear, Role::Conv, Role::Embedding];

/// The chosen scheme of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenScheme {
    /// The name of the tensor.
    pub name: String,
    /// The scheme, optionally with pruning after a `+`; see [`SchemeChoice`](crate::parse::SchemeChoice).
    pub scheme: String,
    /// Whether no layer that ran uses the tensor, so that it has no input statistics.
    pub is_idle: bool,
}

impl Recipe {
    /// Returns the recipe with these schemes instead of open step sizes.
    ///
    /// A tensor without input statistics is rounded to the nearest, in its own stage. Pruned tensors get a
    /// prune stage for each share or pattern, before the quantize stages.
    ///
    /// # Errors
    /// Bug: a scheme is invalid.
    pub fn with_schemes(&self, schemes: &[GivenScheme]) -> Result<Self> {
        let mut recipe = Self { budget: None, ..self.clone() };
        recipe.asked.budget = None;
        recipe.asked.output.storage = recipe.codes_entropy.then(|| "entropy".into());
        recipe.prune_first(schemes)?;
        let (idle, running): (Vec<&GivenScheme>, Vec<&GivenScheme>) = schemes.iter().partition(|given| given.is_idle);
        let mut scale = None;
        for stage in recipe.quantize_stages().filter(|stage| stage.is_open()) {
            let of_stage = stage.scheme.weights;
            close(&mut stage.scheme);
            stage.overrides.iter_mut().for_each(|(_, scheme)| close(scheme));
            for given in &running {
                let mut scheme = scheme_of(given)?;
                scheme.weights.has_columns = of_stage.has_columns;
                if !scheme.weights.range.is_step() {
                    (scheme.weights.scale, scale) = (of_stage.scale, Some(of_stage.scale));
                }
                stage.found.insert(given.name.clone(), scheme);
            }
            stage.selection.unnamed.extend(idle.iter().map(|given| given.name.clone()));
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
        idle.into_iter().try_for_each(|given| recipe.round_apart(given))?;
        // Data that only the sensitivity measurement used must not be calibrated on.
        if !recipe.asked.uses_calibration() {
            (recipe.calibration, recipe.asked.calibration) = (None, None);
        }
        Ok(recipe)
    }
}

impl Recipe {
    /// Returns whether the recipe trains with step sizes that its budget chooses.
    pub fn learns_steps(&self) -> bool {
        self.budget.is_some() && self.parts.iter().any(RecipePart::learns_steps)
    }

    /// Returns the recipe with rounding to the nearest.
    #[must_use]
    pub fn to_nearest(mut self) -> Self {
        for stage in self.quantize_stages() {
            (stage.rounding, stage.learns) = (Rounding::Nearest, false);
        }
        for stage in &mut self.asked.stage {
            if let StageKeys::Quantize(keys) = &mut stage.keys {
                (keys.round, keys.reconstruct) = (None, None);
            }
        }
        if !self.asked.uses_calibration() {
            (self.calibration, self.asked.calibration) = (None, None);
        }
        self
    }

    /// Adds a stage that rounds one tensor to the nearest, after the other quantize stages.
    fn round_apart(&mut self, given: &GivenScheme) -> Result<()> {
        let (name, include) = (scheme_name(&given.scheme), Some(vec![glob_of(&given.name)]));
        let keys = RawQuantize { scheme: Some(name.into()), include, ..RawQuantize::default() };
        let place = self.asked.stage.iter().rposition(|stage| matches!(stage.keys, StageKeys::Quantize(_)));
        self.asked.stage.insert(place.map_or(0, |place| place + 1), StageKeys::Quantize(keys).into());
        let mut stage = QuantizeStage::named(name)?;
        stage.names_embeddings = true;
        stage.selection.named = Some(BTreeSet::from([given.name.clone()]));
        let place = self.stages.iter().rposition(|stage| matches!(stage, Stage::Quantize(_)));
        self.stages.insert(place.map_or(0, |place| place + 1), Stage::Quantize(stage));
        Ok(())
    }

    /// Adds prune stages for the schemes with pruning, before the first quantize stage.
    fn prune_first(&mut self, schemes: &[GivenScheme]) -> Result<()> {
        let mut stages: Vec<(RawPrune, BTreeSet<String>)> = Vec::new();
        for given in schemes {
            let Some(keys) = prune_keys(&given.scheme)? else { continue };
            let is_alike = |stage: &RawPrune| (stage.sparsity, &stage.pattern) == (keys.sparsity, &keys.pattern);
            let place = stages.iter().position(|(stage, _)| is_alike(stage)).unwrap_or_else(|| {
                let stage = RawPrune { include: Some(Vec::new()), roles: Some(PRUNED.to_vec()), ..keys };
                stages.push((stage, BTreeSet::new()));
                stages.len() - 1
            });
            let (keys, names) = &mut stages[place];
            keys.include.get_or_insert_default().push(glob_of(&given.name));
            names.insert(given.name.clone());
        }
        let is_whole = |stage: &RawStage| stage.kind().is_some_and(StageKind::is_whole);
        let first = self.asked.stage.iter().rposition(is_whole).map_or(0, |place| place + 1);
        let is_quantize = |stage: &RawStage| matches!(stage.keys, StageKeys::Quantize(_));
        let asked = self.asked.stage[first..].iter().position(is_quantize).map_or(first, |place| first + place);
        let place = self.stages.iter().position(|stage| matches!(stage, Stage::Quantize(_))).unwrap_or(0);
        for (keys, names) in stages.into_iter().rev() {
            let mut stage = PruneStage::from_raw(&keys, None)?;
            stage.selection.include = None;
            stage.selection.named = Some(names);
            self.stages.insert(place, Stage::Prune(stage));
            self.asked.stage.insert(asked, StageKeys::Prune(keys).into());
        }
        Ok(())
    }

    /// Returns the last quantize stages, and those of quantization-aware training.
    fn quantize_stages(&mut self) -> impl Iterator<Item = &mut QuantizeStage> {
        let last = self.stages.iter_mut().filter_map(|stage| match stage {
            Stage::Quantize(stage) => Some(stage),
            _ => None,
        });
        let learned = self.parts.iter_mut().filter_map(|part| match &mut part.then {
            ModelStage::Distill(stage) => stage.quantize.as_mut(),
            ModelStage::Transform(_) => None,
        });
        last.chain(learned)
    }
}

/// Returns whether a stage has open step sizes.
fn is_open(keys: &RawQuantize) -> bool {
    let is_open = |name: &Option<String>| name.as_deref().is_some_and(|name| OPEN_SCHEMES.contains(&name));
    is_open(&keys.scheme) || keys.overrides.iter().any(|rule| is_open(&rule.scheme))
}

fn scheme_of(given: &GivenScheme) -> Result<Scheme> {
    scheme_name(&given.scheme).parse().map_err(|error| Error::bug(format!("{error}")))
}

fn override_of(given: &GivenScheme) -> RawOverride {
    RawOverride { include: vec![glob_of(&given.name)], sparsity: None, scheme: Some(scheme_name(&given.scheme).into()) }
}

/// Replaces an open scheme by int8; every tensor that it applies to has its own override.
fn close(scheme: &mut Scheme) {
    if scheme.is_open() {
        let weights = QuantSpec { has_columns: scheme.weights.has_columns, ..Scheme::INT8.weights };
        *scheme = Scheme { weights, activations: scheme.activations };
    }
}

fn close_name(name: &mut Option<String>) {
    match name.as_deref() {
        Some("step") => *name = Some("int8".into()),
        Some("step-dynamic") => *name = Some("int8-dynamic".into()),
        _ => {}
    }
}

/// Returns a glob that matches a name; special characters become `?`.
fn glob_of(name: &str) -> String {
    name.chars().map(|c| if "*?[]{}!\\".contains(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::prune::PruneTarget;
    use crate::parse::text::parse;
    use briquette_methods::prune::SparsityPattern;

    fn given(name: &str, scheme: &str, is_idle: bool) -> GivenScheme {
        GivenScheme { name: name.into(), scheme: scheme.into(), is_idle }
    }

    #[test]
    fn pruned_schemes_get_prune_stages_before_the_quantize_stages() {
        let text = "model.path = \"m\"\noutput.path = \"o\"\nbudget = { bytes = \"1MB\", choices = [\"int8\", \"int8+0.5\", \"int4-g64+2:4\"] }\n\
            [[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\ninclude = [\"own\"]\n\
            [[stage]]\nkind = \"quantize\"\nscheme = \"step\"\nexclude = [\"own\"]\n";
        let recipe = Recipe::from_raw(parse(text, "r.toml").unwrap(), "".as_ref()).unwrap();
        let schemes = [
            given("a", "int8+0.5", false),
            given("b[0]", "int4-g64+2:4", false),
            given("c", "int8", false),
            given("d", "int8+0.5", true),
        ];
        let closed = recipe.with_schemes(&schemes).unwrap();
        // The manifest has the same recipe.
        let read = Recipe::from_raw(closed.asked.clone(), "".as_ref()).unwrap();
        for recipe in [&closed, &read] {
            let [
                Stage::Prune(half),
                Stage::Prune(pattern),
                Stage::Quantize(_),
                Stage::Quantize(open),
                Stage::Quantize(idle),
            ] = &recipe.stages[..]
            else {
                panic!("{:?}", recipe.stages)
            };
            let chosen =
                |stage: &PruneStage| ["a", "b[0]", "c", "d"].map(|name| stage.selection.chooses(name, Role::Embedding));
            assert_eq!(chosen(half), [true, false, false, true]);
            assert_eq!(chosen(pattern), [false, true, false, false]);
            assert!(
                matches!(half.target, PruneTarget::Layer(SparsityPattern::Unstructured(ratio)) if ratio.get() == 0.5)
            );
            assert_eq!(pattern.target, PruneTarget::Layer(SparsityPattern::NOfM { n: 2, m: 4 }));
            for (name, scheme) in [("a", "int8"), ("b[0]", "int4-g64"), ("c", "int8")] {
                let (found, expected) =
                    (open.scheme_for(name, false).weights, scheme.parse::<Scheme>().unwrap().weights);
                assert_eq!((found.grid, found.grouping), (expected.grid, expected.grouping), "{name}");
            }
            assert!(idle.selection.chooses("d", Role::Linear) && !open.selection.chooses("d", Role::Linear));
        }
    }
}
