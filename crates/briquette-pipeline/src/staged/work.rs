//! The directory of finished parts beside an output.

use super::{published, training};
use crate::report::DistillReport;
use crate::verify;
use briquette_core::{Error, Result};
use briquette_formats::draft::DirectoryLock;
use briquette_formats::{InputFile, draft, json, limits, presence};
use briquette_recipe::{Recipe, StageKind};
use briquette_writer::context::RunOptions;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file with the recipe and content hashes of the parts.
const RECIPE: &str = "recipe.json";
/// The same of the blocks that the last stages have finished.
const BLOCKS: &str = "blocks.json";

/// The directory of finished parts beside an output.
#[derive(Debug)]
pub(super) struct Work {
    directory: PathBuf,
    /// Two concurrent runs would use each other's parts.
    lock: DirectoryLock,
}

impl Work {
    /// The kind of a part with results of blocks, removed when the stages that need them are done.
    pub(super) const SOLVED: &str = "solved";

    /// Locks a directory for this run, and creates it if it is missing.
    ///
    /// # Errors
    /// - Refused: another run uses it, or an input of `recipe` is in it.
    /// - Io: the directory cannot be created.
    pub(super) fn at(directory: PathBuf, recipe: &Recipe) -> Result<Self> {
        let read: Vec<&Path> = recipe.read.iter().map(|named| named.path.as_path()).collect();
        draft::check_apart(&directory, &read)?;
        std::fs::create_dir_all(&directory)
            .map_err(|error| Error::io("cannot create the directory", &directory, error))?;
        Ok(Self { lock: DirectoryLock::of(&directory)?, directory })
    }

    /// Reuses the parts of an earlier run of the same training with the same contents, or starts anew.
    pub(super) fn begin(&self, now: &Value, force: bool) -> Result<()> {
        if !self.is_of(now, force)? {
            self.clear()?;
            write(&self.directory.join(RECIPE), now)?;
        }
        Ok(())
    }

    /// Removes the blocks that the last stages of another recipe have finished, after `n_parts` parts. Returns whether there were any.
    pub(super) fn begin_blocks(&self, n_parts: usize, now: &Value) -> Result<bool> {
        let (path, blocks) = (self.directory.join(BLOCKS), self.part(n_parts, Self::SOLVED));
        let before = InputFile::open(&path).and_then(|file| file.read_all(limits::MAX_JSON_BYTES));
        let before: Option<Value> = before.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if before.as_ref() == Some(now) {
            return Ok(false);
        }
        let had_blocks = presence::exists(&blocks)?;
        if had_blocks {
            std::fs::remove_dir_all(&blocks).map_err(|error| Error::io("cannot remove", &blocks, error))?;
        }
        write(&path, now)?;
        Ok(had_blocks)
    }

    /// Returns whether the directory belongs to this run. Refuses another run's training unless `force` is set.
    fn is_of(&self, now: &Value, force: bool) -> Result<bool> {
        let path = self.directory.join(RECIPE);
        if !presence::exists(&path)? {
            return Ok(false);
        }
        let bytes = InputFile::open(&path)?.read_all(limits::MAX_JSON_BYTES)?;
        let before: Value = match json::parse(&bytes, "the recipe", &path) {
            Ok(before) => before,
            // The file is damaged, so the owner of the parts is unknown. They may be removed if nothing was
            // trained.
            Err(_) if force || !holds_training(&self.directory)? => return Ok(false),
            Err(error) => {
                let message = format!("{}; pass --force to start anew", error.message);
                return Err(Error { message, ..error });
            }
        };
        let changes = training::changes(&before, now);
        if changes.is_empty() || force || !holds_training(&self.directory)? {
            return Ok(changes.is_empty());
        }
        let message = format!(
            "found an unfinished run of another program, recipe, model or data: {}; undo the change to resume, or pass --force \
             to start anew",
            changes.join(", ")
        );
        Err(Error::refused(message).at(self.directory.display()))
    }

    /// Empties the directory if all its files are known. The directory itself stays, because the lock is on it.
    fn clear(&self) -> Result<()> {
        check_is_ours(&self.directory)?;
        let failed = |path: &Path, error| Error::io("cannot remove", path, error);
        for path in presence::entries(&self.directory)? {
            let removed = if presence::is_directory(&path)? {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }

    /// Explains an error: if the directory was removed during the run, no part is the cause.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.lock.explain(error)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether there are results of long work: factors, a student, or a checkpoint. True if unknown.
    pub(super) fn holds_parts(&self) -> bool {
        let Ok(paths) = presence::entries(&self.directory) else { return true };
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_long = |path: &PathBuf| whole_kinds().any(|kind| name(path).ends_with(&format!("-{kind}")));
        paths.iter().any(is_long) || holds_training(&self.directory).unwrap_or(true)
    }

    pub(super) fn part(&self, index: usize, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{kind}", index + 1))
    }

    /// Returns whether a part is present and intact. With `force`, a damaged part is made again.
    pub(super) fn is_done(&self, part: &Path, options: &RunOptions) -> Result<bool> {
        if !presence::exists(part)? {
            return Ok(false);
        }
        match verify::check_files(part, options) {
            Ok(()) => Ok(true),
            Err(error) if error.is_bad_input() && options.force => {
                options.progress.line(&format!("making this part again because of --force: {error}"));
                std::fs::remove_dir_all(part).map_err(|source| Error::io("cannot remove", part, source))?;
                Ok(false)
            }
            Err(error) if error.is_bad_input() => {
                let message = format!("{}; pass --force to make this part again", error.message);
                Err(Error { message, ..error })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn checkpoints(&self, index: usize) -> PathBuf {
        self.part(index, "training")
    }

    /// Removes the directory, which is beside `target`, unless it has an unknown file.
    pub(super) fn discard(self, target: &Path) {
        discard(&self.directory, target);
    }
}

fn write(path: &Path, identity: &Value) -> Result<()> {
    let text = serde_json::to_vec_pretty(identity).map_err(|error| Error::bug(format!("the recipe: {error}")))?;
    draft::replace_file(path, &text)
}

/// Returns the kinds of stages that work on a whole model. Directories of finished parts have their names.
fn whole_kinds() -> impl Iterator<Item = StageKind> {
    StageKind::ALL.into_iter().filter(|kind| kind.is_whole())
}

/// Removes a directory of finished parts atomically, unless it has an unknown file.
pub(crate) fn discard(directory: &Path, target: &Path) {
    if check_is_ours(directory).is_ok() {
        // A directory that cannot be removed only wastes space; the run itself is finished.
        let _ = draft::discard(directory, target);
    }
}

/// Refuses a directory with an unknown file, because it is about to be removed.
pub(super) fn check_is_ours(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(|error| Error::io("cannot list", directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("cannot list", directory, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_part = |name: &str| {
            let (number, kind) = name.split_once('-').unwrap_or_default();
            number.parse::<usize>().is_ok()
                && (whole_kinds().any(|whole| whole.name() == kind)
                    || ["compress", "training", Work::SOLVED].contains(&kind))
        };
        // A draft has the name of its part with a leading dot.
        let part = draft::target_of_draft(&name).unwrap_or(&name);
        if ![RECIPE, BLOCKS, published::FILE, draft::MARK].contains(&part) && !is_part(part) {
            let message = "is not a file of a run; move it, or choose another output";
            return Err(Error::refused(message).at(entry.path().display()));
        }
    }
    Ok(())
}

/// Returns whether there is a trained student or a checkpoint of a training.
fn holds_training(directory: &Path) -> Result<bool> {
    for path in presence::entries(directory)? {
        if presence::exists(&path.join(DistillReport::FILE))? || presence::exists(&path.join("last.json"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::InputHasher;
    use briquette_core::DType;
    use briquette_formats::{Checkpoint, safetensors};
    use briquette_recipe::parse;
    use briquette_recipe::paths::stages_beside;
    use briquette_writer::context::{RunOptions, Stop};

    #[test]
    fn only_files_of_a_run_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1-compress", "2-distill", "12-training", ".1-distill.partial-77-0"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["recipe.json", ".recipe.json.partial-77-0", "blocks.json", "published.json"] {
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

    /// Writes a model with one small tensor, data to evaluate on, and a recipe that trains it. The output is
    /// `out`.
    fn model_and_recipe(directory: &Path) -> Recipe {
        let tensors = std::collections::BTreeMap::from([("w".into(), (DType::U8, vec![8], vec![1; 8]))]);
        std::fs::write(directory.join("m.safetensors"), safetensors::to_file(&tensors).unwrap()).unwrap();
        std::fs::write(directory.join("held-out.txt"), "one").unwrap();
        let stage = match cfg!(feature = "model") {
            true => "kind = \"distill\"\nloss = [{ kind = \"logits\" }]\n",
            false => "kind = \"factorize\"\nenergy = 0.9\n",
        };
        let text = "[model]\npath = \"m.safetensors\"\n[output]\npath = \"out\"\n[data]\ntrain = \"held-out.txt\"\n\
            eval = \"held-out.txt\"\n[[stage]]\n";
        Recipe::from_raw(parse(&format!("{text}{stage}"), "r.toml").unwrap(), directory).unwrap()
    }

    fn open(recipe: &Recipe, force: bool) -> Result<Work> {
        let model = Checkpoint::open(&recipe.model)?;
        let contents = InputHasher::default().of_recipe(recipe, &model, &Stop::default())?;
        let work = Work::at(stages_beside(&recipe.output), recipe)?;
        work.begin(&training::identity(recipe, &contents, &RunOptions::default()), force)?;
        Ok(work)
    }

    #[test]
    fn changed_models_or_data_are_not_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = model_and_recipe(dir.path());
        let trained = dir.path().join("out.stages/1-distill").join(DistillReport::FILE);
        let cases = [("m.safetensors", "model.path"), ("held-out.txt", "data.eval")];
        // Builds without models cannot train on data.
        for (name, key) in cases.into_iter().take(if cfg!(feature = "model") { 2 } else { 1 }) {
            drop(open(&recipe, true).unwrap());
            std::fs::create_dir(trained.parent().unwrap()).unwrap();
            std::fs::write(&trained, "{}").unwrap();
            let path = dir.path().join(name);
            // The same content written again counts as unchanged.
            let mut bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            drop(open(&recipe, false).unwrap());
            assert!(trained.exists(), "the same {name} resumes");
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let error = open(&recipe, false).unwrap_err();
            assert!(error.to_string().contains(&format!("the content of {key} changed")), "{error}");
            assert!(trained.exists() && error.exit_code() == 6);
            drop(open(&recipe, true).unwrap());
            assert!(!trained.exists(), "--force starts anew");
        }
    }

    #[test]
    fn inputs_in_the_directory_of_parts_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut recipe = model_and_recipe(dir.path());
        let path = dir.path().join("out.stages/m.safetensors");
        std::fs::create_dir(dir.path().join("out.stages")).unwrap();
        std::fs::rename(&recipe.model, &path).unwrap();
        (recipe.model, recipe.read[0].path) = (path.clone(), path.clone());
        let error = open(&recipe, true).unwrap_err();
        assert!(error.to_string().contains("out.stages/m.safetensors") && error.exit_code() == 6, "{error}");
        assert!(path.exists());
    }

    #[test]
    fn two_runs_do_not_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let recipe = model_and_recipe(dir.path());
        let first = open(&recipe, false).unwrap();
        for force in [false, true] {
            let error = open(&recipe, force).unwrap_err();
            assert!(error.to_string().contains("another run") && error.exit_code() == 6, "{error}");
        }
        drop(first);
        open(&recipe, false).unwrap();
    }
}
