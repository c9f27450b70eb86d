//! Trainings that several jobs share.
//!
//! Each runs once, is stored beside the journal, and is removed after the last of these jobs.

use crate::report::JobStatus;
use crate::staged::{discard, read_by_training, training_keys};
use briquette_core::{Hash128, Result};
use briquette_recipe::Recipe;
use briquette_recipe::paths::NamedPath;
use briquette_writer::context::RunOptions;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A hash that identifies a training before any input is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(Hash128);

/// The jobs that share a training.
#[derive(Debug, Default)]
struct Group {
    n_jobs: usize,
    n_over: usize,
    has_failed: bool,
    /// The job that did the training.
    trained_by: Option<String>,
}

/// Trainings that several jobs share.
#[derive(Debug)]
pub(super) struct SharedTrainings {
    directory: PathBuf,
    groups: BTreeMap<Key, Group>,
}

impl SharedTrainings {
    /// Creates shared trainings in `directory`, which need not exist.
    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory, groups: BTreeMap::new() }
    }

    /// Counts a job that will run, if it trains or factorizes.
    ///
    /// # Errors
    /// Io: there is no current directory.
    pub(super) fn count(&mut self, recipe: &Recipe, options: &RunOptions) -> Result<()> {
        if let Some(key) = key_of(recipe, options)? {
            self.groups.entry(key).or_default().n_jobs += 1;
        }
        Ok(())
    }

    /// Returns the directory of a shared training; `None` if no other job shares it.
    ///
    /// # Errors
    /// See [`count`](Self::count).
    pub(super) fn place_of(&self, recipe: &Recipe, options: &RunOptions) -> Result<Option<TrainingPlace>> {
        let key = key_of(recipe, options)?.filter(|key| self.groups.get(key).is_some_and(|group| group.n_jobs > 1));
        Ok(key.map(|key| TrainingPlace { directory: self.directory.join(key.0.to_string()), key }))
    }

    /// Returns the job of this run that did the training.
    pub(super) fn trained_by(&self, place: &TrainingPlace) -> Option<&str> {
        self.groups.get(&place.key)?.trained_by.as_deref()
    }

    /// Records that a job of a group has ended. The status is `None` if it failed.
    ///
    /// After the last job, the training is removed unless a job failed: its next run needs the training.
    pub(super) fn over(&mut self, place: &TrainingPlace, job: &str, status: Option<JobStatus>) {
        let Some(group) = self.groups.get_mut(&place.key) else { return };
        group.n_over += 1;
        group.has_failed |= status.is_none();
        if status == Some(JobStatus::Done) {
            group.trained_by.get_or_insert_with(|| job.to_string());
        }
        if group.n_over == group.n_jobs && !group.has_failed {
            discard(&place.directory, &place.directory);
        }
    }

    /// Ends the batch. If every job is done, trainings of earlier versions of the jobs file are removed too.
    pub(super) fn end(&self, is_all_done: bool) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().filter_map(std::result::Result::ok);
        entries.filter(|_| is_all_done).for_each(|entry| discard(&entry.path(), &entry.path()));
        self.remove_if_empty();
    }

    fn remove_if_empty(&self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// The place of a shared training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrainingPlace {
    pub(super) directory: PathBuf,
    key: Key,
}

/// Returns the key of a training; `None` if the recipe neither trains nor factorizes.
///
/// The key has paths and not their contents, because another job may still create these.
fn key_of(recipe: &Recipe, options: &RunOptions) -> Result<Option<Key>> {
    if recipe.parts.is_empty() {
        return Ok(None);
    }
    let path = |named: &NamedPath| {
        Ok(format!("{} {}\n", named.key, briquette_recipe::paths::one_spelling(&named.path)?.display()))
    };
    let paths = read_by_training(recipe).map(path).collect::<Result<String>>()?;
    let text = format!("{}\n{paths}", training_keys(recipe, options));
    Ok(Some(Key(Hash128::of_block(text.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn recipe(energy: f64, scheme: &str, model: &str) -> Recipe {
        let text = format!(
            "[model]\npath = \"{model}\"\n[output]\npath = \"{scheme}\"\n[[stage]]\nkind = \"factorize\"\nenergy = {energy}\n\
             [[stage]]\nkind = \"quantize\"\nscheme = \"{scheme}\"\n"
        );
        Recipe::from_raw(briquette_recipe::parse(&text, "r.toml").unwrap(), Path::new("d")).unwrap()
    }

    #[test]
    fn a_shared_training_lives_from_its_first_job_to_its_last() {
        let dir = tempfile::tempdir().unwrap();
        let mut shared = SharedTrainings::at(dir.path().join("jobs.stages"));
        let options = RunOptions::default();
        let recipes = [
            recipe(0.9, "int8", "m"),
            recipe(0.9, "int4", "./x/../m"),
            recipe(0.8, "int8", "m"),
            recipe(0.9, "int8", "n"),
        ];
        recipes.iter().for_each(|recipe| shared.count(recipe, &options).unwrap());
        let places = recipes.each_ref().map(|recipe| shared.place_of(recipe, &options).unwrap());
        assert!(places[0].is_some() && places[0] == places[1], "the scheme of a later stage does not matter");
        assert_eq!(places[2..], [None, None], "other trainings are not shared");
        let place = places[0].clone().unwrap();
        let begin = || std::fs::create_dir_all(place.directory.join("1-factorize")).unwrap();
        begin();
        shared.over(&place, "one", Some(JobStatus::Done));
        assert!(place.directory.exists() && shared.trained_by(&place) == Some("one"));
        shared.over(&place, "two", Some(JobStatus::Skipped));
        shared.end(false);
        assert!(!dir.path().join("jobs.stages").exists());

        let mut shared = SharedTrainings::at(dir.path().join("jobs.stages"));
        recipes.iter().for_each(|recipe| shared.count(recipe, &options).unwrap());
        begin();
        std::fs::write(dir.path().join("jobs.stages/thesis.txt"), "x").unwrap();
        shared.over(&place, "one", None);
        shared.over(&place, "two", Some(JobStatus::Done));
        shared.end(false);
        assert!(place.directory.exists(), "the failed job will need it");
        shared.end(true);
        assert!(!place.directory.exists() && dir.path().join("jobs.stages/thesis.txt").exists());
    }
}
