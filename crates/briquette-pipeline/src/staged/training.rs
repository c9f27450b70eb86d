//! The identity of a training.
//!
//! It has the recipe up to its last whole-model stage, and the contents of its inputs.
//!
//! Paths are not enough, because their contents may have changed.

use crate::contents::InputHashes;
use crate::identity::PROGRAM;
use crate::solve;
use briquette_recipe::paths::{self, NamedPath, Purpose};
use briquette_recipe::raw::RawStage;
use briquette_recipe::{Recipe, StageKind};
use briquette_writer::context::RunOptions;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The key of the content hashes.
const CONTENT: &str = "content";

/// Returns the number of stages up to the last training or factorization.
///
/// With calibration or weight updates, it counts up to the last stage that changes anything, because block
/// outputs depend on all of them.
fn n_before(recipe: &Recipe) -> usize {
    let is_whole = |stage: &RawStage| stage.kind().is_some_and(StageKind::is_whole);
    let changes = |stage: &RawStage| stage.kind() != Some(StageKind::Evaluate);
    let mut stages = recipe.asked.stage.iter();
    let last = if solve::is_requested(recipe) { stages.rposition(changes) } else { stages.rposition(is_whole) };
    last.map_or(0, |last| last + 1)
}

/// Returns the inputs of the stages up to the last training or factorization.
///
/// These are all models, the statistics of their pruning, and data if they train.
pub(crate) fn read_by_training(recipe: &Recipe) -> impl Iterator<Item = &NamedPath> {
    let (trains, n_before) = (recipe.trainings().next().is_some(), n_before(recipe));
    recipe.read.iter().filter(move |named| match named.purpose {
        Purpose::Model | Purpose::CalibrationData => true,
        // Statistics of `[calibration]` serve every stage.
        Purpose::Statistics => named.stage().is_none_or(|stage| stage < n_before),
        _ => trains,
    })
}

/// Returns the program and the keys of these stages: later stages, the gate and the evaluation do not count.
pub(crate) fn training_keys(recipe: &Recipe, options: &RunOptions) -> Value {
    let raw = paths::without(&recipe.asked);
    let (before, after) = raw.stage.split_at(n_before(recipe));
    let mut value = json!({ "program": PROGRAM, "model": raw.model, "stage": before });
    if let Some(calibration) = &raw.calibration {
        value["calibration"] = json!(calibration);
    }
    if recipe.trainings().next().is_some() {
        (value["memory"], value["data"]) = (json!(raw.memory), json!(raw.data));
    }
    if let Some(budget) = &raw.budget {
        value["budget"] = json!(budget);
    }
    if recipe.trainings().any(|stage| stage.quantize.is_some()) {
        // The student trains with its weights rounded as this later stage will round them.
        value["quantize"] = json!(after.iter().find(|stage| stage.kind() == Some(StageKind::Quantize)));
    }
    if options.devices.len() > 1 {
        // With another number of devices, a step has other items and gives other weights.
        value["n_devices"] = options.devices.len().into();
    }
    value
}

/// Returns the keys and input contents of these stages: the identity of a training.
pub(super) fn identity(recipe: &Recipe, contents: &InputHashes, options: &RunOptions) -> Value {
    let mut value = training_keys(recipe, options);
    let read = read_by_training(recipe).filter_map(|named| contents.get_key_value(&named.key));
    value[CONTENT] = json!(read.collect::<BTreeMap<_, _>>());
    value
}

/// Lists the differences between two identities: `stage.0.epochs was 2 and is 3`, `the content of data.train
/// changed`.
pub(super) fn changes(before: &Value, now: &Value) -> Vec<String> {
    let mut before = before.clone();
    let mut now = now.clone();
    let [old, new] = [&mut before, &mut now].map(|value| value.get_mut(CONTENT).map(Value::take).unwrap_or_default());
    let keys: BTreeSet<&String> = [&old, &new]
        .into_iter()
        .flat_map(|contents| contents.as_object().into_iter().flat_map(|map| map.keys()))
        .collect();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    let contents = changed.map(|key| format!("the content of {key} changed"));
    differences("", &before, &now).into_iter().chain(contents).collect()
}

fn differences(key: &str, before: &Value, now: &Value) -> Vec<String> {
    use Value::{Array, Null, Object};
    let below = |name: &str| if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
    match (before, now) {
        (Object(before), Object(now)) => {
            let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            let of = |map: &serde_json::Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or(Null);
            names.into_iter().flat_map(|name| differences(&below(name), &of(before, name), &of(now, name))).collect()
        }
        (Array(before), Array(now)) if before.len() == now.len() => {
            let pairs = before.iter().zip(now).enumerate();
            pairs.flat_map(|(place, (before, now))| differences(&below(&place.to_string()), before, now)).collect()
        }
        (before, now) if before == now => Vec::new(),
        (before, now) => vec![format!("{key} was {before} and is {now}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_lists_its_key_and_both_values() {
        let before = json!({ "a": 1, "stage": [{ "epochs": 2 }, { "x": true }], "content": { "data.train": "1f" } });
        let now = json!({ "a": 1, "stage": [{ "epochs": 3 }, { "x": true }], "b": "new", "content": {} });
        assert_eq!(changes(&before, &before), [""; 0]);
        let expected =
            ["b was null and is \"new\"", "stage.0.epochs was 2 and is 3", "the content of data.train changed"];
        assert_eq!(changes(&before, &now), expected);
    }

    /// Returns a recipe that factorizes and then has another stage.
    fn recipe(after: &str) -> Recipe {
        let text = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\nkind = \"factorize\"\nenergy = 0.9\n";
        let raw = briquette_recipe::parse(&format!("{text}{after}"), "r.toml").unwrap();
        Recipe::from_raw(raw, "d".as_ref()).unwrap()
    }

    #[test]
    fn stages_after_the_last_training_do_not_count() {
        let of = |after: &str| training_keys(&recipe(after), &RunOptions::default());
        let quantize = |scheme: &str| format!("[[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n");
        assert_eq!(of(&quantize("int8")), of(&quantize("int4")));
        assert_eq!(of(""), of("[[stage]]\nkind = \"evaluate\"\n[data]\neval = \"d\"\n"));
        let more = "[[stage]]\nkind = \"factorize\"\nenergy = 0.8\n";
        assert_ne!(of(""), of(more));
    }

    #[test]
    fn another_program_does_not_continue_a_run() {
        let now = training_keys(&recipe(""), &RunOptions::default());
        let mut before = now.clone();
        before["program"] = json!("briquette 0.0.1");
        assert_eq!(changes(&before, &now), [format!("program was \"briquette 0.0.1\" and is \"{PROGRAM}\"")]);
    }

    #[test]
    fn statistics_of_pruning_before_the_last_training_count() {
        let prune = "[[stage]]\nkind = \"prune\"\nmethod = \"wanda\"\nstatistics = \"s\"\nsparsity = 0.5\n";
        let distill = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\n";
        let of = |stages: &str| {
            let recipe = recipe(&format!("[data]\ntrain = \"t\"\n{stages}"));
            read_by_training(&recipe).map(|named| named.key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&format!("{prune}{distill}")), ["model.path", "data.train", "stage.1.statistics"]);
        assert_eq!(of(&format!("{distill}{prune}")), ["model.path", "data.train"]);
    }

    #[test]
    fn quantization_that_a_training_uses_counts() {
        let of = |keys: &str, scheme: &str| {
            let distill = format!("[[stage]]\nkind = \"distill\"\nloss = [{{ kind = \"logits\" }}]\n{keys}\n");
            let quantize = format!("[[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n");
            training_keys(&recipe(&format!("{distill}{quantize}[data]\ntrain = \"t\"\n")), &RunOptions::default())
        };
        assert_eq!(of("", "int8"), of("", "int4"));
        assert_ne!(of("quantization_aware = true", "int8"), of("quantization_aware = true", "int4"));
    }
}
