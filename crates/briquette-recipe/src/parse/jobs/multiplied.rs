//! A base with a matrix: jobs whose recipes are built on demand.

use super::file::{JobsFile, name_of};
use super::matrix::{JobMatrix, Point};
use super::overrides;
use super::raw::RawJob;
use crate::parse::paths::path_from;
use crate::parse::raw::RawRecipe;
use crate::parse::{Recipe, paths};
use briquette_core::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The key that must differ between jobs.
const OUTPUT: &str = "output.path";

/// A base with a matrix.
#[derive(Debug)]
pub(super) struct Multiplied {
    file: Arc<JobsFile>,
    matrix: JobMatrix,
    /// The recipe of the base, with resolved paths.
    base: Value,
    /// The output of the base, with placeholders.
    output: Option<PathBuf>,
    /// The name of each job, with placeholders; `None` takes the name from the output.
    name: Option<String>,
}

impl Multiplied {
    /// Creates the jobs; checks output and name of the first point.
    ///
    /// # Errors
    /// Config: the base is invalid, or its output has a placeholder that is not an axis.
    pub(super) fn new(file: &Arc<JobsFile>, base: &RawJob, matrix: JobMatrix) -> Result<Self> {
        let recipe = file.changed(base, &["base"])?;
        let (output, name) = (recipe.output.path.clone(), base.name.clone());
        let base = serde_json::to_value(recipe).map_err(|error| Error::config(error.to_string()))?;
        let all = Self { file: file.clone(), matrix, base, output, name };
        // A wrong matrix key breaks both the name and the recipe. Only the error of the recipe has the key.
        all.called(0).map(drop).or_else(|error| all.changed(all.matrix.point(0)).and(Err(error)))?;
        Ok(all)
    }

    /// Returns the number of jobs.
    pub(super) fn len(&self) -> usize {
        self.matrix.len()
    }

    /// Builds the recipe of the job at `index`.
    ///
    /// # Errors
    /// Config: the recipe is invalid; the message has the values of the point and their line.
    pub(super) fn recipe(&self, index: usize) -> Result<Recipe> {
        let point = self.matrix.point(index);
        let recipe = self.changed(point).and_then(|mut raw| {
            raw.output.path = Some(self.called(index)?.1);
            Recipe::from_raw(raw, Path::new(""))
        });
        recipe.map_err(|error| self.file.locate(error.at(format_args!("base with {point}")), &["base"]))
    }

    /// Returns the base recipe with the values of a point, except for its output.
    fn changed(&self, point: Point) -> Result<RawRecipe> {
        let changed = overrides::apply_all(&self.base, &point.values().collect::<Vec<_>>());
        let mut raw = changed.map_err(|(path, error)| self.file.at_override(error, &["base"], &path))?;
        for (path, _) in point.values() {
            paths::resolve_at(&mut raw, path, self.file.directory());
        }
        Ok(raw)
    }

    /// Returns the name and the output of the job at `index`.
    pub(super) fn called(&self, index: usize) -> Result<(String, PathBuf)> {
        let point = self.matrix.point(index);
        let set = point.values().find(|(path, _)| *path == OUTPUT).and_then(|(_, value)| value.as_str());
        let set = set.map(|path| path_from(self.file.directory(), Path::new(path)));
        let missing = || Error::config("missing; set the directory to write").at(OUTPUT);
        let output = set.as_ref().or(self.output.as_ref()).ok_or_else(missing)?;
        let output = PathBuf::from(point.fill(&output.to_string_lossy()).map_err(|error| error.at(OUTPUT))?);
        let name = self.name.as_deref().map(|name| point.fill(name).map_err(|error| error.at("name"))).transpose()?;
        Ok((name_of(name, &output)?, output))
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::jobs::Jobs;
    use crate::parse::raw::StageKeys;
    use std::time::{Duration, Instant};

    /// Returns a jobs file with a matrix of a hundred thousand points.
    fn many(keys: &str) -> String {
        let seeds: Vec<String> = (0..1000).map(|seed| seed.to_string()).collect();
        let shares: Vec<String> = (1..=100).map(|share| format!("{}", f64::from(share) / 128.0)).collect();
        format!(
            "[base]\nset = {{ {keys} }}\n[base.model]\npath = \"m\"\n[base.output]\n\
             path = \"out/{{stage.0.sparsity}}-{{stage.0.seed}}\"\n[[base.stage]]\nkind = \"prune\"\nmethod = \"random\"\n\
             [matrix]\n\"stage.0.seed\" = [{}]\n\"stage.0.sparsity\" = [{}]\n",
            seeds.join(", "),
            shares.join(", ")
        )
    }

    #[test]
    fn a_hundred_thousand_points_open_quickly() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.toml");
        let open = |keys: &str| {
            std::fs::write(&path, many(keys)).unwrap();
            let since = Instant::now();
            let jobs = Jobs::from_file(&path);
            // It takes a tenth of this time on an idle machine.
            assert!(since.elapsed() < Duration::from_secs(15), "took {:?}", since.elapsed());
            jobs
        };
        let jobs = open("").unwrap();
        assert_eq!(jobs.jobs.len(), 100_000);
        let recipe = jobs.jobs[99_999].recipe().unwrap();
        let seed = match &recipe.asked.stage[0].keys {
            StageKeys::Prune(keys) => keys.seed,
            _ => None,
        };
        assert_eq!((seed, recipe.output.ends_with("out/0.78125-999")), (Some(999), true));
        assert_eq!(jobs.jobs[99_999].output(), Some(recipe.output.as_path()));
        let error = open("\"stage.0.pattern\" = \"2:4\"").unwrap_err().to_string();
        assert!(error.contains("base with stage.0.seed = 0, stage.0.sparsity = 0.0078125: stage 1 (prune)"), "{error}");
    }

    #[test]
    fn a_job_is_small_until_its_recipe_is_built() {
        assert!(size_of::<crate::parse::jobs::Job>() <= 128, "{}", size_of::<crate::parse::jobs::Job>());
    }

    #[test]
    fn paths_of_a_matrix_are_relative_to_its_file() {
        let text = "[base]\nname = \"j{stage.0.seed}\"\n[base.model]\npath = \"m\"\n[base.output]\npath = \"unused\"\n\
            [[base.stage]]\nkind = \"prune\"\nmethod = \"random\"\nsparsity = 0.5\n[base.data]\neval = \"../d\"\n\
            [matrix]\n\"stage.0.seed\" = [1]\n\"model.path\" = [\"a\"]\n\"output.path\" = [\"o/{stage.0.seed}\"]\n\
            \"data.train\" = [\"t\"]\n";
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("jobs.toml"), text).unwrap();
        let jobs = Jobs::from_file(&dir.path().join("jobs.toml")).unwrap();
        let recipe = jobs.jobs[0].recipe().unwrap();
        let data = recipe.asked.data.unwrap();
        let at = |name: &str| Some(dir.path().join(name));
        assert_eq!((jobs.jobs[0].name.as_str(), Some(recipe.model), data.train), ("j1", at("a"), at("t")));
        assert_eq!((Some(recipe.output), data.eval), (at("o/1"), dir.path().parent().map(|above| above.join("d"))));
        assert_eq!(jobs.jobs[0].output(), at("o/1").as_deref());
    }
}
