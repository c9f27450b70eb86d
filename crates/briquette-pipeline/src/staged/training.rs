//! The identity of a run's finished parts, and that of the blocks that its last stages have finished.
//!
//! The parts have the recipe up to its last whole-model stage, and the contents of its inputs: paths are not enough, because their
//! contents may have changed. Blocks of the last stages also depend on these stages, whose change keeps the parts.

use crate::contents::InputHashes;
use crate::identity::PROGRAM;
use briquette_recipe::paths::{self, NamedPath, Purpose};
use briquette_recipe::raw::{RawData, RawRecipe, RawStage};
use briquette_recipe::{Recipe, RecipePart, StageKind};
use briquette_writer::context::RunOptions;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The key of the content hashes.
const CONTENT: &str = "content";

/// Returns the number of stages that finished parts depend on: those up to the last training or transform.
///
/// If a training uses the step sizes of a budget, these are all stages that change anything, because all of them run before it too.
fn n_before(recipe: &Recipe) -> usize {
    let is_whole = |stage: &RawStage| stage.kind().is_some_and(StageKind::is_whole);
    let stages = &recipe.asked.stage;
    let last =
        if recipe.learns_steps() { stages.iter().rposition(changes_model) } else { stages.iter().rposition(is_whole) };
    last.map_or(0, |last| last + 1)
}

fn changes_model(stage: &RawStage) -> bool {
    stage.kind() != Some(StageKind::Evaluate)
}

/// Returns whether parts may depend on the calibration: those with file stages, transforms, and trainings with rounded weights.
fn parts_calibrate(recipe: &Recipe) -> bool {
    let rounds = recipe.scales.is_some() || recipe.trainings().any(|stage| stage.quantize.is_some());
    let is_plain = |part: &RecipePart| part.stages.is_empty() && part.then.as_distill().is_some();
    rounds || !recipe.parts.iter().all(is_plain)
}

/// Returns the inputs of the stages up to the last training or transform.
///
/// These are all models, the statistics of their pruning, and data if they train or calibrate.
pub(crate) fn read_by_training(recipe: &Recipe) -> impl Iterator<Item = &NamedPath> {
    let (trains, calibrates) = (recipe.trainings().next().is_some(), parts_calibrate(recipe));
    let n_before = n_before(recipe);
    recipe.read.iter().filter(move |named| match named.purpose {
        Purpose::Model => true,
        Purpose::CalibrationData => calibrates,
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
    if parts_calibrate(recipe) {
        add_calibration(&mut value, recipe, &raw);
    }
    if recipe.trainings().next().is_some() {
        // The number of threads that prepare items changes nothing.
        let data = raw.data.clone().map(|data| RawData { workers: None, ..data });
        (value["memory"], value["data"]) = (json!(raw.memory), json!(data));
    }
    if recipe.learns_steps() {
        value["budget"] = json!(raw.budget);
    }
    if recipe.trainings().any(|stage| stage.quantize.is_some()) {
        // The student trains with its weights rounded as this later stage will round them.
        value["quantize"] = json!(after.iter().find(|stage| stage.kind() == Some(StageKind::Quantize)));
    }
    if recipe.scales.is_some() {
        // Formats have grids of their own, so the codes of the training depend on the format.
        value["output"]["format"] = recipe.profile.name().into();
        value["output"]["storage"] = if recipe.codes_entropy { "entropy" } else { "auto" }.into();
        value["budget"] = json!(raw.budget);
    }
    if options.devices.len() > 1 {
        // With another number of devices, a step has other items and gives other weights.
        value["n_devices"] = options.devices.len().into();
    }
    value
}

/// Adds the calibration, with the settings that follow from other tables: how its data is prepared, and whether weights are corrected.
fn add_calibration(value: &mut Value, recipe: &Recipe, raw: &RawRecipe) {
    value["calibration"] = json!(raw.calibration);
    if let Some(run) = &recipe.calibration {
        value["calibration"]["correct"] = run.is_corrected.into();
        value["calibration"]["sequential"] = run.is_sequential.into();
        value["data"] = json!(RawData { eval: None, ..run.data.clone() });
    }
}

/// Returns the keys of all stages that change the model, and the contents of what they read: the identity of blocks that the last
/// stages have finished.
pub(super) fn identity_of_blocks(recipe: &Recipe, contents: &InputHashes) -> Value {
    let raw = paths::without(&recipe.asked);
    let stages: Vec<&RawStage> = raw.stage.iter().filter(|stage| changes_model(stage)).collect();
    let mut value = json!({ "program": PROGRAM, "model": raw.model, "stage": stages, "budget": raw.budget });
    add_calibration(&mut value, recipe, &raw);
    // Formats have grids of their own.
    value["output"]["format"] = recipe.profile.name().into();
    let is_read =
        |named: &&NamedPath| matches!(named.purpose, Purpose::Model | Purpose::CalibrationData | Purpose::Statistics);
    let read = recipe.read.iter().filter(is_read).filter_map(|named| contents.get_key_value(&named.key));
    value[CONTENT] = json!(read.collect::<BTreeMap<_, _>>());
    value
}

/// Returns the keys and input contents of the stages up to the last training or transform: the identity of finished parts.
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

    fn of_text(text: &str) -> Recipe {
        let raw = briquette_recipe::parse(&format!("[model]\npath = \"m\"\n[output]\npath = \"o\"\n{text}"), "r.toml");
        Recipe::from_raw(raw.unwrap(), "d".as_ref()).unwrap()
    }

    const DISTILL: &str = "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\" }]\n";
    const GPTQ: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4\"\nround = \"gptq\"\n";

    #[test]
    fn a_training_of_scales_depends_on_the_format_of_its_codes() {
        let keys = |format: &str, stages: &str| {
            let text = format!("format = \"{format}\"\n[data]\ntrain = \"t\"\n{stages}");
            training_keys(&of_text(&text), &RunOptions::default())
        };
        let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4\"\n";
        let scales = format!("{quantize}{DISTILL}train = \"scales\"\n");
        let [ours, other] = ["briquette", "dense"].map(|format| keys(format, &scales));
        assert_eq!(changes(&ours, &other), ["output.format was \"briquette\" and is \"dense\""]);
        let [ours, other] = ["briquette", "dense"].map(|format| keys(format, &format!("{DISTILL}{quantize}")));
        assert_eq!(ours, other);
    }

    #[test]
    fn blocks_depend_on_more_than_the_training_before_them() {
        let both = |text: &str| {
            let recipe = of_text(text);
            [training_keys(&recipe, &RunOptions::default()), identity_of_blocks(&recipe, &InputHashes::new())]
        };
        let calibration = "[calibration]\ndata = \"c\"\n";
        let base = format!("[data]\ntrain = \"t\"\neval = \"e\"\n{calibration}{DISTILL}{GPTQ}");
        let [training, blocks] = both(&base);
        let evaluate = "[[stage]]\nkind = \"evaluate\"\n";
        for same in [base.replace("train = \"t\"", "train = \"t\"\nworkers = 3"), format!("{base}{evaluate}")] {
            assert_eq!(both(&same), [training.clone(), blocks.clone()], "{same}");
        }
        for other in [
            base.replace("int4", "int3"),
            base.replace("data = \"c\"", "data = \"c\"\nsamples = 3"),
            format!("format = \"dense\"\n{base}"),
            format!("{base}[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n"),
        ] {
            let [same, changed] = both(&other);
            assert_eq!(same, training, "{other}");
            assert_ne!(changed, blocks, "{other}");
        }
        // Without a limit, weights are corrected for the errors before them.
        let alone = format!("{calibration}{GPTQ}");
        let [_, corrected] = both(&alone);
        let [_, limited] = both(&format!("[memory]\nlimit = \"8GB\"\n{alone}"));
        assert_eq!(changes(&corrected, &limited), ["calibration.correct was true and is false"]);
        let [_, normalized] = both(&format!("[data]\nsize = 64\n{alone}"));
        assert_eq!(changes(&corrected, &normalized), ["data.size was null and is 64"]);
    }

    #[test]
    fn parts_that_look_at_the_calibration_depend_on_it() {
        let of = |samples: usize, before: &str| {
            let text =
                format!("[data]\ntrain = \"t\"\n[calibration]\ndata = \"c\"\nsamples = {samples}\n{before}{DISTILL}");
            let recipe = of_text(&format!("{text}{GPTQ}"));
            let read: Vec<String> = read_by_training(&recipe).map(|named| named.key.clone()).collect();
            (training_keys(&recipe, &RunOptions::default()), read.contains(&"calibration.data".to_string()))
        };
        let wanda = "[[stage]]\nkind = \"prune\"\nmethod = \"wanda\"\nsparsity = 0.5\n";
        assert_eq!(of(3, ""), of(4, ""));
        assert!(of(3, wanda).0 != of(4, wanda).0 && of(3, wanda).1 && !of(3, "").1);
    }

    #[test]
    fn a_training_with_steps_of_a_budget_depends_on_all_stages_that_change_the_model() {
        let of = |after: &str| {
            let budget =
                "[budget]\nbytes = \"24kB\"\nsensitivity = \"relative\"\n[data]\ntrain = \"t\"\neval = \"e\"\n";
            let stages = format!(
                "{DISTILL}quantization_aware = true\n[[stage]]\nkind = \"quantize\"\nscheme = \"step\"\n{after}"
            );
            training_keys(&of_text(&format!("{budget}{stages}")), &RunOptions::default())
        };
        assert_ne!(of(""), of("[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n"));
        assert_eq!(of(""), of("[[stage]]\nkind = \"evaluate\"\n"));
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
