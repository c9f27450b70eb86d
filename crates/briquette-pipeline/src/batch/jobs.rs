//! From a file to sound jobs: every recipe is whole, and no two write to one place, before anything runs.

use super::beside::Beside;
use super::matrix::Matrix;
use super::multiplied::Multiplied;
use super::raw::{RawJob, RawJobs};
use super::{Job, Shard, distinct, overrides};
use crate::recipe::raw::RawRecipe;
use crate::recipe::{Recipe, directory_of, paths, ranges, read_raw, text};
use briquette_core::pattern::nearest;
use briquette_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Keys that only a jobs file has.
const JOBS_KEYS: [&str; 3] = ["job", "base", "matrix"];
/// Keys that only a recipe has.
const RECIPE_KEYS: [&str; 6] = ["model", "output", "stage", "data", "memory", "gate"];

/// The jobs of a file, in order, with names and outputs of their own.
#[derive(Debug, Clone)]
pub struct Jobs {
    /// The file.
    pub path: PathBuf,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// The deepest directory that holds every output; the journal is here.
    pub directory: PathBuf,
    /// Every output, in one spelling, and the place of its job.
    pub(super) outputs: BTreeMap<PathBuf, usize>,
}

/// What `run` and `plan` take: told apart by the keys at the top.
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
    /// Config, with the line and what to write instead; Io where it cannot be read.
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

/// Whether the keys at the top are those of a jobs file, or, where none is known, most like those.
fn is_jobs(text: &str) -> bool {
    let Ok(table) = toml::from_str::<toml::Table>(text) else { return false };
    let has = |known: &[&str]| known.iter().any(|key| table.contains_key(*key));
    let is_like_jobs = |key: &String| {
        let known = JOBS_KEYS.into_iter().chain(RECIPE_KEYS);
        nearest(key, known).is_some_and(|key| JOBS_KEYS.contains(&key))
    };
    has(&JOBS_KEYS) || !has(&RECIPE_KEYS) && table.keys().any(is_like_jobs)
}

/// The JSON Schema of a jobs file.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(RawJobs).to_value();
    ranges::bound(&mut schema);
    schema
}

impl Jobs {
    /// Reads a jobs file; its paths are relative to it.
    ///
    /// # Errors
    /// Config, with the line and what to write instead; Io where it cannot be read.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_text(path, &text::read_text(path)?)
    }

    fn from_text(path: &Path, text: &str) -> Result<Self> {
        let file =
            Arc::new(JobsFile { path: path.to_path_buf(), text: text.to_string(), directory: directory_of(path) });
        let raw: RawJobs = text::parse(text, &path.display().to_string())?;
        let jobs = file.expand(&raw)?;
        let outputs = distinct::check(&jobs).map_err(|error| error.at(path.display()))?;
        let directory = distinct::common_directory(outputs.keys());
        Ok(Self { path: path.to_path_buf(), jobs, directory, outputs })
    }

    /// None, of a file called `sweep.toml`, beside whatever is in `directory`.
    #[cfg(test)]
    pub(super) fn of(directory: &Path) -> Self {
        let directory = directory.to_path_buf();
        Self { path: "sweep.toml".into(), jobs: Vec::new(), directory, outputs: BTreeMap::new() }
    }

    /// Everything that running the jobs may read or write, but for what shards call their own.
    pub fn touched(&self) -> Vec<PathBuf> {
        let recipes = self.jobs.iter().filter_map(|job| job.recipe().ok());
        let mut touched: BTreeSet<PathBuf> =
            recipes.flat_map(|recipe| paths::touched(&recipe.asked, Path::new(""))).collect();
        if let Ok(Beside { journal, page, shared, .. }) = Beside::of(self, Shard::default()) {
            touched.extend([journal, page, shared]);
        }
        touched.into_iter().collect()
    }

    /// The job in an earlier place than `index` that makes what another reads at `path`.
    pub(super) fn maker_of(&self, path: &Path, index: usize) -> Result<Option<&Job>> {
        let path = distinct::resolve(path)?;
        let makers = path.ancestors().filter_map(|above| self.outputs.get(above));
        Ok(makers.copied().find(|maker| *maker < index).map(|maker| &self.jobs[maker]))
    }
}

/// A jobs file while it is read: what errors and paths refer to.
#[derive(Debug)]
pub(super) struct JobsFile {
    path: PathBuf,
    text: String,
    directory: PathBuf,
}

impl JobsFile {
    /// Every job. One whose recipe is not sound leaves the others alone; where none is, the first error is the file's.
    fn expand(self: &Arc<Self>, raw: &RawJobs) -> Result<Vec<Job>> {
        let mut jobs: Vec<Job> = raw.job.iter().enumerate().map(|(index, job)| self.written(index, job)).collect();
        let mut is_any_sound = jobs.iter().any(|job| job.recipe().is_ok());
        match (&raw.base, raw.matrix.is_empty()) {
            (None, true) => {}
            (Some(base), false) => {
                let matrix = Matrix::new(&raw.matrix).map_err(|error| self.locate(error.at("matrix"), &["matrix"]))?;
                let (more, is_sound) = Multiplied::jobs(self, base, matrix).unwrap_or_else(|error| {
                    let error = self.locate(error.at("base"), &["base"]);
                    (vec![Job::unsound(base.name.clone().unwrap_or("base".into()), &error)], false)
                });
                jobs.extend(more);
                is_any_sound |= is_sound;
            }
            (Some(_), true) => return Err(self.lacks("base", "there is no [matrix] that multiplies it; add one")),
            (None, false) => return Err(self.lacks("matrix", "there is no [base] to multiply; add one")),
        }
        match jobs.first() {
            None => Err(Error::config("there is no [[job]] and no [matrix]; nothing to do").at(self.path.display())),
            Some(first) if !is_any_sound => first.recipe().map(|_| jobs),
            Some(_) => Ok(jobs),
        }
    }

    /// A job that is written out.
    fn written(&self, index: usize, raw: &RawJob) -> Job {
        let (place, called) = (["job", &index.to_string()], format!("job {}", index + 1));
        let made = self.changed(raw, &place).and_then(|recipe| {
            let recipe = Recipe::from_raw(recipe, Path::new(""))?;
            Ok(Job::written(name_of(raw.name.clone(), &recipe.output)?, recipe))
        });
        made.unwrap_or_else(|error| {
            let error = self.locate(error.at(&called), &place);
            Job::unsound(raw.name.clone().unwrap_or(called), &error)
        })
    }

    fn lacks(&self, key: &str, what: &str) -> Error {
        self.locate(Error::config(what).at(key), &[key])
    }

    /// Puts the file and the line in front, unless they are there already.
    pub(super) fn locate(&self, error: Error, place: &[&str]) -> Error {
        match text::line_of(&self.text, place) {
            Some(line) => error.at(format_args!("{}:{line}", self.path.display())),
            None => error.at(self.path.display()),
        }
    }

    /// The directory that paths in this file are relative to.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The recipe of a job, then what it sets. Its paths are relative to where this program runs.
    pub(super) fn changed(&self, raw: &RawJob, place: &[&str]) -> Result<RawRecipe> {
        let mut recipe = self.recipe_of(raw)?;
        for (path, value) in overrides::flatten(&raw.set) {
            recipe = overrides::apply(&recipe, &path, value).map_err(|error| self.at_override(error, place, &path))?;
            // Paths that this file sets are relative to it.
            paths::resolve_at(&mut recipe, &path, &self.directory);
        }
        Ok(recipe)
    }

    /// Names the line of a value that is put into a recipe.
    pub(super) fn at_override(&self, error: Error, place: &[&str], path: &str) -> Error {
        let bare: Vec<&str> = path.split('.').collect();
        let tables = [[place, &["set"]].concat(), vec!["matrix"]];
        let lines = tables.iter().flat_map(|table| {
            [[table.as_slice(), &[path]].concat(), [table.as_slice(), &bare].concat()]
                .map(|steps| text::line_of(&self.text, &steps))
        });
        let line = lines.flatten().next().map_or("?".into(), |line| line.to_string());
        error.at(format_args!("set (line {line})"))
    }

    /// The recipe that a job names or spells out, with its paths made relative to where this program runs.
    fn recipe_of(&self, raw: &RawJob) -> Result<RawRecipe> {
        let is_inline = raw.model.is_some() || raw.output.is_some() || raw.stage.is_some();
        let (mut recipe, directory) = match &raw.recipe {
            Some(_) if is_inline => {
                let message = "comes with model, output or stage; change a recipe with set, or spell out all of it";
                return Err(Error::config(message).at("recipe"));
            }
            Some(path) => {
                let path = self.directory.join(path);
                (read_raw(&path)?, directory_of(&path))
            }
            None => (inline(raw), self.directory.clone()),
        };
        paths::resolve(&mut recipe, &directory);
        Ok(recipe)
    }
}

/// What a job is called: by its name, or by its output.
pub(super) fn name_of(name: Option<String>, output: &Path) -> Result<String> {
    let last = || output.file_name().map(|name| name.to_string_lossy().into_owned());
    name.or_else(last).ok_or_else(|| Error::config("output.path: names no directory; choose another"))
}

fn inline(raw: &RawJob) -> RawRecipe {
    RawRecipe {
        model: raw.model.clone().unwrap_or_default(),
        output: raw.output.clone().unwrap_or_default(),
        stage: raw.stage.clone().unwrap_or_default(),
        data: raw.data.clone(),
        memory: raw.memory.clone(),
        gate: raw.gate.clone(),
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
    fn jobs_are_told_from_recipes_by_their_keys() {
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
    fn an_inline_job_is_relative_to_its_file_and_named_by_its_output() {
        let jobs = parse(&format!("[[job]]\n{INLINE}")).unwrap();
        let (job, recipe) = (&jobs.jobs[0], jobs.jobs[0].recipe().unwrap());
        assert_eq!((job.name.as_str(), recipe.model.to_str()), ("a", Some("dir/m")));
        assert_eq!(recipe.output, Path::new("dir/out/a"));
        assert!(jobs.directory.ends_with("dir/out"), "{}", jobs.directory.display());
    }

    #[test]
    fn a_matrix_makes_a_job_of_every_combination_after_the_written_ones() {
        let text = format!(
            "[[job]]\n{INLINE}{BASE}[matrix]\nstage.0.sparsity = [0.2, 0.4]\n\"stage.0.scope\" = [\"layer\"]\n"
        );
        let names: Vec<String> = parse(&text).unwrap().jobs.into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["a", "p0.2", "p0.4"]);
    }

    #[test]
    fn a_job_that_is_not_sound_leaves_the_others_alone() {
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
        assert_eq!(parse(gone).unwrap_err().exit_code(), 2, "where none is sound, the file is refused");
    }

    #[test]
    fn a_mistake_is_one_line_with_the_place_and_what_to_write() {
        let job = |set: &str| format!("[[job]]\nset = {{ {set} }}\n{INLINE}");
        let matrix = |text: &str| format!("{BASE}[matrix]\n{text}\n");
        let cases = [
            (job("\"stage.0.spasity\" = 0.1"), "jobs.toml:1: job 1: set (line 2): stage.0.spasity: unknown key"),
            (job("stage.0.spasity = 0.1"), "did you mean \"sparsity\"?"),
            (job("\"stage.1.sparsity\" = 0.1"), "expected the place in a list of 1"),
            (job("\"stage.0.sparsity\" = 1.5"), "job 1: stage 1 (prune): sparsity: found 1.5"),
            ("[[job]]\nrecpie = \"a\"".into(), "jobs.toml:2: unknown key \"recpie\""),
            ("[[jobs]]".into(), "did you mean \"job\"?"),
            ("job = []".into(), "nothing to do"),
            ("[[job]]".into(), "jobs.toml:1: job 1: model.path: missing"),
            (format!("[[job]]\nrecipe = \"r.toml\"\n{INLINE}"), "change a recipe with set"),
            ("[[job]]\nrecipe = \"absent.toml\"".into(), "dir/absent.toml: no such file"),
            (format!("[[job]]\n{INLINE}[[job]]\n{INLINE}"), "write to one place"),
            (format!("[[job]]\n{INLINE}[[job]]\nset = {{ \"output.path\" = \"out/a/b\" }}\n{INLINE}"), "lies inside"),
            (format!("[[job]]\n{INLINE}[[job]]\nset.output.path = \"b/a\"\n{INLINE}"), "are both called \"a\""),
            (BASE.into(), "jobs.toml:1: base: there is no [matrix]"),
            ("[matrix]\na = [1]".into(), "jobs.toml:1: matrix: there is no [base]"),
            (matrix("\"stage.0.spasity\" = [0.1]"), "set (line 8): stage.0.spasity: unknown key"),
            (matrix("\"stage.0.seed\" = [1, 2]"), "output.path: found {stage.0.sparsity}, expected an axis"),
            (matrix("\"stage.0.sparsity\" = 0.1"), "expected a list of values"),
            (matrix("\"stage.0.sparsity\" = [0.1, 0.1]"), "write to one place"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).unwrap_err();
            let found = error.to_string();
            assert!(found.contains(expected) && !found.contains('\n'), "{text}: {found:?} lacks {expected:?}");
            assert_eq!(error.exit_code(), 2, "{found}");
        }
    }
}
