//! Recipes that train or factorize: what comes before the last stages is kept beside the output until all is done, so that a run that
//! was killed goes on where it stood.
//!
//! `OUT.stages/` holds `recipe.json`, an output directory for each finished part (`1-compress`, `1-distill`, `2-factorize`, ..) and, while
//! one trains, its checkpoints. A part that is there is whole: directories appear in one step.

use crate::batch::InputHasher;
use crate::context::{RunOptions, Stop};
use crate::distill::{self, Asked, DistillReport};
use crate::factorize::{self, FactorReport};
use crate::plan::Plan;
use crate::recipe::{DistillStage, FactorizeStage, Part, Recipe, Selection, Stage, Whole};
use crate::report::{Footprint, Report, StageBytes};
use crate::run::{Origin, inputs_of, run_stages};
use briquette_core::{Error, Result};
use briquette_formats::draft::DirectoryLock;
use briquette_formats::{Checkpoint, Draft, InputFile, Profile, TensorSource, draft, json, limits};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// What an unfinished run is of.
const RECIPE: &str = "recipe.json";

/// Runs every part of a recipe that trains or factorizes.
pub(crate) fn run(recipe: &Recipe, options: &RunOptions) -> Result<Report> {
    let original = Checkpoint::open(&recipe.model)?;
    // Whatever can be known now should not be found out after hours of training.
<<<<<<< HEAD
    Plan::new(recipe, &original, &options.stop)?;
    recipe.trained.iter().try_for_each(|part| check_data(part.distill.data.train.as_deref()))?;
=======
    Plan::new(recipe, &original)?;
    distills(recipe).try_for_each(|stage| distill::check_devices(stage, &options.devices))?;
    distills(recipe).try_for_each(|stage| check_data(stage.data.train.as_deref()))?;
>>>>>>> h-distill
    drop(Draft::create(&recipe.output, &inputs_of(recipe, &original), options.force)?);
    let work = Work::open(recipe, &original, options)?;
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
    if check_is_ours(&work.directory).is_ok() {
        let _ = std::fs::remove_dir_all(&work.directory);
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
#[derive(Debug)]
struct Work {
    directory: PathBuf,
    /// Two runs at once would take each other's parts for their own.
    _lock: DirectoryLock,
}

impl Work {
    /// Opens what an earlier run of the same recipe on the same files left, or begins.
    fn open(recipe: &Recipe, original: &Checkpoint, options: &RunOptions) -> Result<Self> {
        let name = recipe.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directory = recipe.output.with_file_name(format!("{name}.stages"));
<<<<<<< HEAD
=======
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
>>>>>>> h-distill
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::io("cannot create the directory", &directory, error))?;
        let work = Self { _lock: DirectoryLock::of(&directory)?, directory };
        let now = identity(recipe, original, &options.stop)?;
        if !work.is_of(&now, options.force)? {
            work.clear()?;
            let text = serde_json::to_vec_pretty(&now).map_err(|error| Error::bug(format!("the recipe: {error}")))?;
            draft::replace_file(&work.directory.join(RECIPE), &text)?;
        }
        Ok(work)
    }

    /// Whether what is here belongs to this run; refused where it took another run training, unless that may go.
    fn is_of(&self, now: &serde_json::Value, force: bool) -> Result<bool> {
        let path = self.directory.join(RECIPE);
        if !path.exists() {
            return Ok(false);
        }
        let bytes = InputFile::open(&path)?.read_all(limits::MAX_JSON_BYTES)?;
        let before: serde_json::Value = json::parse(&bytes, "the recipe", &path)?;
        let changes = changes("", &before, now);
        if changes.is_empty() || force || !holds_training(&self.directory)? {
            return Ok(changes.is_empty());
        }
        let message = format!(
            "an unfinished run of another recipe, model or data is kept here: {}; put that back to go on, or pass --force \
             to begin anew",
            changes.join(", ")
        );
        Err(Error::refused(message).at(self.directory.display()))
    }

    /// Removes what is in the directory, where all of it is ours. The directory stays, as the lock is on it.
    fn clear(&self) -> Result<()> {
        check_is_ours(&self.directory)?;
        let failed = |path: &Path, error| Error::io("cannot remove", path, error);
        for entry in std::fs::read_dir(&self.directory).map_err(|error| failed(&self.directory, error))? {
            let path = entry.map_err(|error| failed(&self.directory, error))?.path();
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }

    fn part(&self, index: usize, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{kind}", index + 1))
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
        if part != RECIPE && !is_part(part) {
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

<<<<<<< HEAD
/// What makes two runs the same: the recipe but for its evaluation, and the content of the model, of teachers, and of the
/// data that it trains on. A path is not enough: what lies there may have changed.
fn identity(recipe: &Recipe, original: &Checkpoint, stop: &Stop) -> Result<serde_json::Value> {
    let mut hasher = InputHasher::default();
    let stages = recipe.asked.stage.iter().filter(|stage| stage.kind != "evaluate");
    let (mut teachers, mut data) = (Vec::new(), Vec::new());
    for part in &recipe.trained {
        let teacher = part.distill.teacher.as_deref().map(|path| hasher.hash_model(&Checkpoint::open(path)?, stop));
        teachers.push(teacher.transpose()?);
        let train = part.distill.data.train.as_deref();
        data.push(train.map(|path| hasher.hash_data(path, stop)).transpose()?);
    }
=======
/// What makes two runs the same: the recipe but for its evaluation, and the data that it trains on.
fn identity(recipe: &Recipe, options: &RunOptions) -> Result<serde_json::Value> {
    let stages = recipe.asked.stage.iter().filter(|stage| stage.kind != "evaluate");
    let hashes: Vec<Option<String>> = distills(recipe).map(|stage| hash_of(stage.data.train.as_deref())).collect();
>>>>>>> h-distill
    let asked = &recipe.asked;
    let mut value = serde_json::json!({
        "model": asked.model, "stage": stages.collect::<Vec<_>>(), "memory": asked.memory, "data": asked.data,
        "model_content": hasher.hash_model(original, stop)?, "teacher_content": teachers, "train_data": data,
    });
    if options.devices.len() > 1 {
        // Another number of devices makes other steps.
        value["n_devices"] = options.devices.len().into();
    }
    Ok(value)
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
    use crate::recipe::parse;
    use briquette_core::DType;
    use briquette_formats::safetensors;

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

    /// A model of one small tensor, and a recipe for it; the output is `out`.
    fn model_and_recipe(directory: &Path) -> Recipe {
        let tensors = std::collections::BTreeMap::from([("w".into(), (DType::U8, vec![8], vec![1; 8]))]);
        std::fs::write(directory.join("m.safetensors"), safetensors::to_file(&tensors).unwrap()).unwrap();
        let text = "[model]\npath = \"m.safetensors\"\n[output]\npath = \"out\"\n[[stage]]\nkind = \"quantize\"\n";
        Recipe::from_raw(parse(&format!("{text}scheme = \"int8\"\n"), "r.toml").unwrap(), directory).unwrap()
    }

    #[test]
    fn a_model_that_changed_under_its_path_is_not_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = model_and_recipe(dir.path());
        let open = |force| {
            let options = RunOptions { force, ..RunOptions::default() };
            Work::open(&recipe, &Checkpoint::open(&recipe.model).unwrap(), &options)
        };
        let trained = dir.path().join("out.stages/1-distill").join(distill::REPORT);
        drop(open(false).unwrap());
        std::fs::create_dir(trained.parent().unwrap()).unwrap();
        std::fs::write(&trained, "{}").unwrap();
        // Written again with the same content it is the same model.
        std::fs::write(&recipe.model, std::fs::read(&recipe.model).unwrap()).unwrap();
        drop(open(false).unwrap());
        assert!(trained.exists(), "the same model goes on");
        let mut bytes = std::fs::read(&recipe.model).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&recipe.model, bytes).unwrap();
        let error = open(false).unwrap_err();
        assert!(error.to_string().contains("model_content was") && error.exit_code() == 6, "{error}");
        assert!(trained.exists());
        drop(open(true).unwrap());
        assert!(!trained.exists(), "--force begins anew");
    }

    #[test]
    fn two_runs_do_not_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = model_and_recipe(dir.path());
        let original = Checkpoint::open(&recipe.model).unwrap();
        let first = Work::open(&recipe, &original, &RunOptions::default()).unwrap();
        for force in [false, true] {
            let options = RunOptions { force, ..RunOptions::default() };
            let error = Work::open(&recipe, &original, &options).unwrap_err();
            assert!(error.to_string().contains("another run") && error.exit_code() == 6, "{error}");
        }
        drop(first);
        Work::open(&recipe, &original, &RunOptions::default()).unwrap();
    }

    #[test]
    fn a_change_names_its_key_and_both_values() {
        let before = serde_json::json!({ "a": 1, "stage": [{ "epochs": 2 }, { "x": true }] });
        let now = serde_json::json!({ "a": 1, "stage": [{ "epochs": 3 }, { "x": true }], "b": "new" });
        assert_eq!(changes("", &before, &before), [""; 0]);
        assert_eq!(changes("", &before, &now), ["b was null and is \"new\"", "stage.0.epochs was 2 and is 3"]);
    }
}
