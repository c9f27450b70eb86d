//! Trainings that several jobs have in common: they are done once, kept beside the journal, and go with the last of those jobs.

use crate::staged::{asked_of_training, discard, read_by_training};
use briquette_core::{Hash128, Result};
use briquette_recipe::Recipe;
use briquette_recipe::paths::NamedPath;
use briquette_report::JobStatus;
use briquette_writer::context::RunOptions;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What tells one training from another before anything is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(Hash128);

/// The jobs with one training.
#[derive(Debug, Default)]
struct Group {
    n_jobs: usize,
    n_over: usize,
    has_failed: bool,
    /// The job that did it.
    trained_by: Option<String>,
}

/// Trainings that several jobs have in common.
#[derive(Debug)]
pub(super) struct SharedTrainings {
    directory: PathBuf,
    groups: BTreeMap<Key, Group>,
}

impl SharedTrainings {
    /// Keeps them in `directory`, which need not be there.
    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory, groups: BTreeMap::new() }
    }

    /// Counts a job that is to be done, where it trains or factorizes.
    ///
    /// # Errors
    /// Io, where there is no current directory.
    pub(super) fn count(&mut self, recipe: &Recipe, options: &RunOptions) -> Result<()> {
        if let Some(key) = key_of(recipe, options)? {
            self.groups.entry(key).or_default().n_jobs += 1;
        }
        Ok(())
    }

    /// Where what a job has in common with others is kept; none where it is alone.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    pub(super) fn place_of(&self, recipe: &Recipe, options: &RunOptions) -> Result<Option<TrainingPlace>> {
        let key = key_of(recipe, options)?.filter(|key| self.groups.get(key).is_some_and(|group| group.n_jobs > 1));
        Ok(key.map(|key| TrainingPlace { directory: self.directory.join(key.0.to_string()), key }))
    }

    /// The job that did the training before, in this run.
    pub(super) fn trained_by(&self, place: &TrainingPlace) -> Option<&str> {
        self.groups.get(&place.key)?.trained_by.as_deref()
    }

    /// A job of a group is over; no status where it failed. With the last one the training goes, unless a job failed: its next run
    /// needs it.
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

    /// No more jobs follow. Where every job is done, what an earlier form of the file left goes too.
    pub(super) fn end(&self, is_all_done: bool) {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().filter_map(std::result::Result::ok);
        entries.filter(|_| is_all_done).for_each(|entry| discard(&entry.path(), &entry.path()));
        self.remove_if_empty();
    }

    fn remove_if_empty(&self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Where a training is kept for several jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrainingPlace {
    pub(super) directory: PathBuf,
    key: Key,
}

/// None of a recipe that neither trains nor factorizes. Paths count, not what lies there: another job may yet make that.
fn key_of(recipe: &Recipe, options: &RunOptions) -> Result<Option<Key>> {
    if recipe.parts.is_empty() {
        return Ok(None);
    }
    let path = |named: &NamedPath| {
        Ok(format!("{} {}\n", named.key, briquette_recipe::paths::one_spelling(&named.path)?.display()))
    };
    let paths = read_by_training(recipe).map(path).collect::<Result<String>>()?;
    let text = format!("{}\n{paths}", asked_of_training(recipe, options));
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
    fn a_training_is_kept_from_the_first_of_its_jobs_to_the_last() {
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
        assert!(places[0].is_some() && places[0] == places[1], "the scheme comes after");
        assert_eq!(places[2..], [None, None], "others are alone");
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
        assert!(place.directory.exists(), "the job that failed will need it");
        shared.end(true);
        assert!(!place.directory.exists() && dir.path().join("jobs.stages/thesis.txt").exists());
    }
}
