//! The directory of what is not done yet.

use super::distills;
use crate::batch::InputHasher;
use crate::context::RunOptions;
use crate::distill;
use crate::recipe::Recipe;
use briquette_core::{Error, Result};
use briquette_formats::draft::DirectoryLock;
use briquette_formats::{Checkpoint, InputFile, draft, json, limits};
use std::path::{Path, PathBuf};

/// What an unfinished run is of.
const RECIPE: &str = "recipe.json";

/// The directory of what is not done yet.
#[derive(Debug)]
pub(super) struct Work {
    directory: PathBuf,
    /// Two runs at once would take each other's parts for their own.
    lock: DirectoryLock,
}

impl Work {
    /// Opens what an earlier run of the same recipe on the same files left, or begins.
    pub(super) fn open(recipe: &Recipe, original: &Checkpoint, options: &RunOptions) -> Result<Self> {
        let name = recipe.output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directory = recipe.output.with_file_name(format!("{name}.stages"));
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::io("cannot create the directory", &directory, error))?;
        let work = Self { lock: DirectoryLock::of(&directory)?, directory };
        let now = identity(recipe, original, options)?;
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

    /// What an error comes from: where the directory was removed meanwhile, no part of it is to blame.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.lock.explain(error)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether there is anything that took long: factors, a student, or a checkpoint. Where that cannot be told, there is.
    pub(super) fn holds_parts(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return true };
        let is_long = |name: String| name.ends_with("-distill") || name.ends_with("-factorize");
        let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        names.any(is_long) || holds_training(&self.directory).unwrap_or(true)
    }

    pub(super) fn part(&self, index: usize, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{kind}", index + 1))
    }

    pub(super) fn checkpoints(&self, index: usize) -> PathBuf {
        self.part(index, "training")
    }
}

/// Refuses a directory with anything that no run keeps there: it is about to be removed.
pub(super) fn check_is_ours(directory: &Path) -> Result<()> {
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

/// What makes two runs the same: the recipe but for its evaluation, and the content of the model, of teachers, and of the
/// data that it trains on. A path is not enough: what lies there may have changed.
fn identity(recipe: &Recipe, original: &Checkpoint, options: &RunOptions) -> Result<serde_json::Value> {
    let (mut hasher, stop) = (InputHasher::default(), &options.stop);
    let stages = recipe.asked.stage.iter().filter(|stage| stage.kind != "evaluate");
    let (mut teachers, mut data) = (Vec::new(), Vec::new());
    for stage in distills(recipe) {
        let teacher = stage.teacher.as_deref().map(|path| hasher.hash_model(&Checkpoint::open(path)?, stop));
        teachers.push(teacher.transpose()?);
        let train = stage.data.train.as_deref();
        data.push(train.map(|path| hasher.hash_data(path, stop)).transpose()?);
    }
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
