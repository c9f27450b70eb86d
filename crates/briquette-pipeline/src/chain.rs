//! Recipes that train or factorize: what comes before the last stages is kept beside the output until all is done, so that a run that
//! was killed goes on where it stood.
//!
//! `OUT.stages/` holds `recipe.json`, an output directory for each finished part (`1-compress`, `1-distill`, `2-factorize`, ..) and, while
//! one trains, its checkpoints. A part that is there is whole: directories appear in one step.

use crate::context::RunOptions;
use crate::distill::{self, Asked, DistillReport};
use crate::factorize::{self, FactorReport};
use crate::plan::Plan;
use crate::recipe::{DistillStage, FactorizeStage, Part, Recipe, Selection, Stage, Whole};
use crate::report::{Footprint, Report, StageBytes};
use crate::run::{Origin, inputs_of, run_stages};
use briquette_core::{Error, Hash128, Result};
use briquette_formats::{Checkpoint, Draft, InputFile, Profile, TensorSource, draft, json, limits};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Data of up to this size is known by its content, not only by its path.
const MAX_HASHED: u64 = 64 << 20;

/// Runs every part of a recipe that trains or factorizes.
pub(crate) fn run(recipe: &Recipe, options: &RunOptions) -> Result<Report> {
    let original = Checkpoint::open(&recipe.model)?;
    // Whatever can be known now should not be found out after hours of training.
    Plan::new(recipe, &original)?;
    distills(recipe).try_for_each(|stage| distill::check_devices(stage, &options.devices))?;
    distills(recipe).try_for_each(|stage| check_data(stage.data.train.as_deref()))?;
    drop(Draft::create(&recipe.output, &inputs_of(recipe, &original), options.force)?);
    let work = Work::open(recipe, options)?;
    let mut origin = Origin { before: Some(footprint(&original)), ..Origin::of(recipe) };
    origin.bytes.push(StageBytes { stage: "original".into(), file_bytes: original.weight_bytes() });
    let mut model = recipe.model.clone();
    let mut pruned: Vec<&Selection> = Vec::new();
    for (index, part) in recipe.parts.iter().enumerate() {
        model = work.compress(index, part, recipe, &model, options, &mut origin)?;
        pruned.extend(part.stages.iter().filter_map(prune_selection));
        let kind = match &part.then {
            Whole::Distill(stage) => {
                origin.trained.push(work.distill(index, stage, recipe, &model, &pruned, options)?);
                pruned.extend(stage.gradual.as_ref().map(|gradual| &gradual.selection));
                origin.metrics = Some(work.checkpoints(index).join("metrics.jsonl"));
                "distill"
            }
            Whole::Factorize(stage) => {
                origin.factorized.extend(work.factorize(index, stage, recipe, &model, options)?);
                "factorize"
            }
        };
        model = work.part(index, kind);
        push_bytes(&mut origin, format!("{kind} {}", index + 1), &model)?;
    }
    let last = Recipe { model, parts: Vec::new(), ..recipe.clone() };
    let report = run_stages(&last, options, &origin)?;
    // What is left of the work is of no use once the output is there; what is not ours stays.
    if check_is_ours(&work.0).is_ok() {
        let _ = std::fs::remove_dir_all(&work.0);
    }
    Ok(report)
}

/// The stages that train.
fn distills(recipe: &Recipe) -> impl Iterator<Item = &DistillStage> {
    recipe.parts.iter().filter_map(|part| part.then.as_distill())
}

/// Refuses data that is not there.
fn check_data(path: Option<&Path>) -> Result<()> {
    match path.filter(|path| !path.is_dir()) {
        Some(path) => InputFile::open(path).map(drop),
        None => Ok(()),
    }
}

fn prune_selection(stage: &Stage) -> Option<&Selection> {
    match stage {
        Stage::Prune(stage) => Some(&stage.selection),
        Stage::Quantize(_) | Stage::Cast(_) => None,
    }
}

fn footprint(checkpoint: &Checkpoint) -> Footprint {
    let tensors = checkpoint.tensors().iter();
    Footprint {
        file_bytes: checkpoint.weight_bytes(),
        tensor_bytes: tensors.clone().map(|info| info.n_bytes() as u64).sum(),
        n_elements: tensors.map(|info| info.n_elements() as u64).sum(),
        n_zeros: None,
    }
}

fn push_bytes(origin: &mut Origin, stage: String, directory: &Path) -> Result<()> {
    let file_bytes = Checkpoint::open(directory)?.weight_bytes();
    origin.bytes.push(StageBytes { stage, file_bytes });
    Ok(())
}

/// The directory of what is not done yet.
struct Work(PathBuf);

impl Work {
    /// Opens what an earlier run of the same recipe left, or begins.
    fn open(recipe: &Recipe, options: &RunOptions) -> Result<Self> {
        let name = recipe.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directory = recipe.output.with_file_name(format!("{name}.stages"));
        let (path, now) = (directory.join("recipe.json"), identity(recipe, options)?);
        if path.exists() {
            let bytes = InputFile::open(&path)?.read_all(limits::MAX_JSON_BYTES)?;
            let before: serde_json::Value = json::parse(&bytes, "the recipe", &path)?;
            let changes = changes("", &before, &now);
            match (changes.is_empty(), options.force || !holds_training(&directory)?) {
                (true, _) => return Ok(Self(directory)),
                (false, false) => {
                    let message = format!(
                        "an unfinished run of another recipe is kept here: {}; put that back to go on, or pass --force to \
                         begin anew",
                        changes.join(", ")
                    );
                    return Err(Error::refused(message).at(directory.display()));
                }
                (false, true) => {}
            }
        }
        if directory.exists() {
            check_is_ours(&directory)?;
            std::fs::remove_dir_all(&directory).map_err(|error| Error::io("cannot remove", &directory, error))?;
        }
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::io("cannot create the directory", &directory, error))?;
        let text = serde_json::to_vec_pretty(&now).map_err(|error| Error::bug(format!("the recipe: {error}")))?;
        draft::replace_file(&path, &text)?;
        Ok(Self(directory))
    }

    fn part(&self, index: usize, kind: &str) -> PathBuf {
        self.0.join(format!("{}-{kind}", index + 1))
    }

    fn checkpoints(&self, index: usize) -> PathBuf {
        self.part(index, "training")
    }

    /// The file stages before a training or the factors. Returns what it starts from.
    fn compress(
        &self,
        index: usize,
        part: &Part,
        recipe: &Recipe,
        model: &Path,
        options: &RunOptions,
        origin: &mut Origin,
    ) -> Result<PathBuf> {
        if part.stages.is_empty() {
            return Ok(model.to_path_buf());
        }
        let output = self.part(index, "compress");
        if !output.exists() {
            let asked = Recipe {
                model: model.to_path_buf(),
                output: output.clone(),
                parts: Vec::new(),
                stages: part.stages.clone(),
                evaluate: None,
                profile: Profile::Briquette,
                ..recipe.clone()
            };
            run_stages(&asked, options, &Origin::of(&asked))?;
        }
        push_bytes(origin, format!("compress {}", index + 1), &output)?;
        Ok(output)
    }

    /// One training.
    fn distill(
        &self,
        index: usize,
        stage: &DistillStage,
        recipe: &Recipe,
        model: &Path,
        pruned: &[&Selection],
        options: &RunOptions,
    ) -> Result<DistillReport> {
        let (output, work) = (self.part(index, "distill"), self.checkpoints(index));
        let asked =
            Asked { stage, pruned, roles: &recipe.roles, original: &recipe.model, model, output: &output, work: &work };
        if !output.exists() {
            distill::train(&asked, options)?;
        }
        read_report(&output.join(distill::REPORT))
    }

    /// The factors of one stage.
    fn factorize(
        &self,
        index: usize,
        stage: &FactorizeStage,
        recipe: &Recipe,
        model: &Path,
        options: &RunOptions,
    ) -> Result<Vec<FactorReport>> {
        let output = self.part(index, "factorize");
        if !output.exists() {
            factorize::factorize(recipe, stage, model, &output, options)?;
        }
        read_report(&output.join(factorize::REPORT))
    }
}

/// What a part said of itself.
fn read_report<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)?;
    json::parse(&bytes, "the report", path)
}

/// Refuses a directory with anything that no run keeps there: it is about to be removed.
fn check_is_ours(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(|error| Error::io("cannot list", directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("cannot list", directory, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_part = |name: &str| {
            let (number, kind) = name.split_once('-').unwrap_or_default();
            number.parse::<usize>().is_ok() && ["compress", "distill", "factorize", "training"].contains(&kind)
        };
        // Drafts are called after their part, behind a dot.
        let part = name.strip_prefix('.').and_then(|name| name.split_once(".partial")).map_or(&*name, |(part, _)| part);
        if part != "recipe.json" && !is_part(part) {
            let message = "is nothing that a run keeps here; move it, or choose another output";
            return Err(Error::refused(message).at(entry.path().display()));
        }
    }
    Ok(())
}

/// Whether there is anything that took training.
fn holds_training(directory: &Path) -> Result<bool> {
    let entries = std::fs::read_dir(directory).map_err(|error| Error::io("cannot list", directory, error))?;
    let holds = |path: PathBuf| path.join(distill::REPORT).exists() || path.join("last.json").exists();
    Ok(entries.filter_map(std::result::Result::ok).any(|entry| holds(entry.path())))
}

/// What makes two runs the same: the recipe but for its evaluation, and the data that it trains on.
fn identity(recipe: &Recipe, options: &RunOptions) -> Result<serde_json::Value> {
    let stages = recipe.asked.stage.iter().filter(|stage| stage.kind != "evaluate");
    let hashes: Vec<Option<String>> = distills(recipe).map(|stage| hash_of(stage.data.train.as_deref())).collect();
    let asked = &recipe.asked;
    let mut value = serde_json::json!({
        "model": asked.model, "stage": stages.collect::<Vec<_>>(), "memory": asked.memory, "data": asked.data,
        "train_data": hashes,
    });
    if options.devices.len() > 1 {
        // Another number of devices makes other steps.
        value["n_devices"] = options.devices.len().into();
    }
    Ok(value)
}

fn hash_of(path: Option<&Path>) -> Option<String> {
    let file = InputFile::open(path?).ok()?;
    Some(Hash128::of_block(&file.read_all(MAX_HASHED).ok()?).to_string())
}

/// What differs between two values: `stage.0.epochs was 2 and is 3`.
fn changes(key: &str, before: &serde_json::Value, now: &serde_json::Value) -> Vec<String> {
    use serde_json::Value::{Array, Null, Object};
    let below = |name: &str| if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
    match (before, now) {
        (Object(before), Object(now)) => {
            let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            let of =
                |map: &serde_json::Map<String, serde_json::Value>, name: &str| map.get(name).cloned().unwrap_or(Null);
            names.into_iter().flat_map(|name| changes(&below(name), &of(before, name), &of(now, name))).collect()
        }
        (Array(before), Array(now)) if before.len() == now.len() => {
            let pairs = before.iter().zip(now).enumerate();
            pairs.flat_map(|(place, (before, now))| changes(&below(&place.to_string()), before, now)).collect()
        }
        (before, now) if before == now => Vec::new(),
        (before, now) => vec![format!("{key} was {before} and is {now}")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_run_keeps_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1-compress", "2-distill", "12-training", ".1-distill.partial-77-0"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["recipe.json", ".recipe.json.partial"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        check_is_ours(dir.path()).unwrap();
        for name in ["thesis.txt", "1-notes", "compress", ".hidden"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
            let error = check_is_ours(dir.path()).unwrap_err();
            assert!(error.message.contains(name) && error.exit_code() == 6, "{error}");
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
    }

    #[test]
    fn a_change_names_its_key_and_both_values() {
        let before = serde_json::json!({ "a": 1, "stage": [{ "epochs": 2 }, { "x": true }] });
        let now = serde_json::json!({ "a": 1, "stage": [{ "epochs": 3 }, { "x": true }], "b": "new" });
        assert_eq!(changes("", &before, &before), [""; 0]);
        assert_eq!(changes("", &before, &now), ["b was null and is \"new\"", "stage.0.epochs was 2 and is 3"]);
    }
}
