//! Reads a jobs file and checks all of its jobs before anything runs.

use super::distinct;
use super::expand::expand;
use super::file::JobsFile;
use super::job::Job;
use super::raw::RawJobs;
use crate::parse::paths::{self, directory_of};
use crate::parse::recipe::Recipe;
use crate::parse::schema::bound_numbers;
use crate::parse::text;
use briquette_core::Result;
use briquette_core::pattern::nearest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Keys that only a jobs file has.
const JOBS_KEYS: [&str; 4] = ["job", "base", "matrix", "also"];
/// Keys that only a recipe has.
const RECIPE_KEYS: [&str; 8] = ["model", "output", "stage", "data", "calibration", "budget", "memory", "gate"];

/// The jobs of a file, in order, with distinct names and outputs.
#[derive(Debug, Clone)]
pub struct Jobs {
    /// The path of the file.
    pub path: PathBuf,
    /// The jobs in the order of the file.
    pub jobs: Vec<Job>,
    /// The deepest directory that contains every output; the journal is written here.
    pub directory: PathBuf,
    /// Existing outputs of other runs, shown in the batch report.
    pub also: Vec<PathBuf>,
    /// The normalized path of each output, and the index of its job.
    outputs: BTreeMap<PathBuf, usize>,
}

/// The input of `run` and `plan`: a recipe or a jobs file, recognized by its top-level keys.
#[derive(Debug, Clone)]
pub enum Document {
    /// One recipe.
    Recipe(Box<Recipe>),
    /// A jobs file.
    Jobs(Jobs),
}

impl Document {
    /// Reads a recipe or a jobs file.
    ///
    /// # Errors
    /// - Config: the file is invalid; the message has the line.
    /// - Io: the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = text::read_text(path)?;
        if is_jobs(&text) {
            return Jobs::from_text(path, &text).map(Self::Jobs);
        }
        let raw = text::parse(&text, &path.display().to_string())?;
        let recipe = Recipe::from_raw(raw, &directory_of(path)).map_err(|error| text::locate(error, &text, path))?;
        Ok(Self::Recipe(Box::new(recipe)))
    }
}

/// Returns whether the top-level keys, or the known keys most similar to them, belong to a jobs file.
fn is_jobs(text: &str) -> bool {
    let Ok(table) = toml::from_str::<toml::Table>(text) else { return false };
    let has = |known: &[&str]| known.iter().any(|key| table.contains_key(*key));
    let is_like_jobs = |key: &String| {
        let known = JOBS_KEYS.into_iter().chain(RECIPE_KEYS);
        nearest(key, known).is_some_and(|key| JOBS_KEYS.contains(&key))
    };
    has(&JOBS_KEYS) || !has(&RECIPE_KEYS) && table.keys().any(is_like_jobs)
}

/// Returns the JSON Schema of a jobs file.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(RawJobs).to_value();
    bound_numbers(&mut schema);
    schema
}

impl Jobs {
    /// Reads a jobs file; its paths are relative to it.
    ///
    /// # Errors
    /// - Config: the file is invalid; the message has the line.
    /// - Io: the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_text(path, &text::read_text(path)?)
    }

    fn from_text(path: &Path, text: &str) -> Result<Self> {
        let raw: RawJobs = text::parse(text, &path.display().to_string())?;
        let jobs = expand(&Arc::new(JobsFile::of(path, text)), &raw)?;
        let outputs = distinct::check(&jobs).map_err(|error| error.at(path.display()))?;
        let also = raw.also.iter().map(|other| paths::path_from(&directory_of(path), other)).collect();
        let directory = distinct::common_directory(outputs.keys());
        Ok(Self { path: path.to_path_buf(), jobs, directory, also, outputs })
    }

    /// Returns every path that the jobs may read or write.
    pub fn touched(&self) -> BTreeSet<PathBuf> {
        let recipes = self.jobs.iter().filter_map(|job| job.recipe().ok());
        recipes.flat_map(|recipe| paths::touched(&recipe.asked, Path::new(""))).collect()
    }

    /// Returns the job before `index` that writes `path`.
    ///
    /// # Errors
    /// Io: there is no current directory.
    pub fn maker_of(&self, path: &Path, index: usize) -> Result<Option<&Job>> {
        let path = paths::one_spelling(path)?;
        let makers = path.ancestors().filter_map(|above| self.outputs.get(above));
        Ok(makers.copied().find(|maker| *maker < index).map(|maker| &self.jobs[maker]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INLINE: &str =
        "[job.model]\npath = \"m\"\n[job.output]\npath = \"out/a\"\n[[job.stage]]\nkind = \"prune\"\nsparsity = 0.5\n";
    const BASE: &str = "[base.model]\npath = \"m\"\n[base.output]\npath = \"out/p{stage.0.sparsity}\"\n[[base.stage]]\nkind = \"prune\"\n";

    fn parse(text: &str) -> Result<Jobs> {
        Jobs::from_text(Path::new("dir/jobs.toml"), text)
    }

    #[test]
    fn jobs_files_are_recognized_by_their_keys() {
        for (text, expected) in [
            ("[[job]]", true),
            ("[[jobs]]", true),
            ("[matrxi]", true),
            ("[base]\n[model]", true),
            ("[model]", false),
            ("[modle]", false),
            ("[[stage]]\n[[jobs]]", false),
            ("", false),
            ("[[", false),
        ] {
            assert_eq!(is_jobs(text), expected, "{text}");
        }
    }

    #[test]
    fn an_inline_job_is_relative_to_its_file_and_named_after_its_output() {
        let jobs = parse(&format!("[[job]]\n{INLINE}")).unwrap();
        let (job, recipe) = (&jobs.jobs[0], jobs.jobs[0].recipe().unwrap());
        assert_eq!((job.name.as_str(), recipe.model.to_str()), ("a", Some("dir/m")));
        assert_eq!(recipe.output, Path::new("dir/out/a"));
        assert!(jobs.directory.ends_with("dir/out"), "{}", jobs.directory.display());
    }

    #[test]
    fn jobs_of_a_matrix_follow_the_written_jobs() {
        let text = format!(
            "[[job]]\n{INLINE}{BASE}[matrix]\nstage.0.sparsity = [0.2, 0.4]\n\"stage.0.scope\" = [\"layer\"]\n"
        );
        let names: Vec<String> = parse(&text).unwrap().jobs.into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["a", "p0.2", "p0.4"]);
    }

    #[test]
    fn an_invalid_job_does_not_affect_the_others() {
        let gone = "[[job]]\nrecipe = \"gone.toml\"\n";
        let bad = INLINE.replace("sparsity = 0.5", "sparsity = 7").replace("out/a", "out/b");
        let jobs = parse(&format!("{gone}[[job]]\nname = \"much\"\n{bad}[[job]]\n{INLINE}")).unwrap();
        let found: Vec<(&str, Option<&str>)> =
            jobs.jobs.iter().map(|job| (job.name.as_str(), job.output().and_then(Path::to_str))).collect();
        assert_eq!(found, [("job 1", None), ("much", None), ("a", Some("dir/out/a"))]);
        let errors: Vec<String> = jobs.jobs[..2].iter().map(|job| job.recipe().unwrap_err().to_string()).collect();
        assert!(errors[0].contains("jobs.toml:1: job 1: dir/gone.toml: no such file"), "{errors:?}");
        assert!(errors[1].contains("job 2: stage 1 (prune): sparsity: found 7"), "{errors:?}");
        let half = format!("{BASE}[matrix]\n\"stage.0.sparsity\" = [0.5, 1.5]\n");
        let errors = parse(&half).unwrap().jobs.iter().filter(|job| job.recipe().is_err()).count();
        assert_eq!(errors, 1);
        assert_eq!(parse(gone).unwrap_err().exit_code(), 2, "a file without a valid job is refused");
    }

    #[test]
    fn errors_are_one_line_with_the_position_and_a_remedy() {
        let job = |set: &str| format!("[[job]]\nset = {{ {set} }}\n{INLINE}");
        let matrix = |text: &str| format!("{BASE}[matrix]\n{text}\n");
        let cases = [
            (job("\"stage.0.spasity\" = 0.1"), "jobs.toml:1: job 1: set (line 2): stage.0.spasity: unknown key"),
            (job("stage.0.spasity = 0.1"), "did you mean \"sparsity\"?"),
            (job("\"stage.1.sparsity\" = 0.1"), "expected an index into a list of 1"),
            (job("\"stage.0.sparsity\" = 1.5"), "job 1: stage 1 (prune): sparsity: found 1.5"),
            ("[[job]]\nrecpie = \"a\"".into(), "jobs.toml:2: unknown key \"recpie\""),
            ("[[jobs]]".into(), "did you mean \"job\"?"),
            ("job = []".into(), "nothing to do"),
            ("[[job]]".into(), "jobs.toml:1: job 1: model.path: missing"),
            (format!("[[job]]\nrecipe = \"r.toml\"\n{INLINE}"), "change a recipe with set"),
            ("[[job]]\nrecipe = \"absent.toml\"".into(), "dir/absent.toml: no such file"),
            (format!("[[job]]\n{INLINE}[[job]]\n{INLINE}"), "have the same output"),
            (
                format!("[[job]]\n{INLINE}[[job]]\nset = {{ \"output.path\" = \"out/a/b\" }}\n{INLINE}"),
                "is inside the output of",
            ),
            (format!("[[job]]\n{INLINE}[[job]]\nset.output.path = \"b/a\"\n{INLINE}"), "are both named \"a\""),
            (BASE.into(), "jobs.toml:1: base: there is no [matrix]"),
            ("[matrix]\na = [1]".into(), "jobs.toml:1: matrix: there is no [base]"),
            (matrix("\"stage.0.spasity\" = [0.1]"), "set (line 8): stage.0.spasity: unknown key"),
            (matrix("\"stage.0.seed\" = [1, 2]"), "output.path: found {stage.0.sparsity}, expected an axis"),
            (matrix("\"stage.0.sparsity\" = 0.1"), "expected a list of values"),
            (matrix("\"stage.0.sparsity\" = [0.1, 0.1]"), "have the same output"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).unwrap_err();
            let found = error.to_string();
            assert!(found.contains(expected) && !found.contains('\n'), "{text}: {found:?} lacks {expected:?}");
            assert_eq!(error.exit_code(), 2, "{found}");
        }
    }
}
