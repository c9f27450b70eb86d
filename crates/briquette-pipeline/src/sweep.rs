//! Sweeps: a budget at several sizes.
//!
//! A sweep has one sensitivity measurement, a batch of jobs, and a page of quality against bytes.

use crate::batch::{BatchOptions, BatchStart, Jobs, run_locked};
use crate::contents::InputHasher;
use crate::report::{BatchReport, JobResult, SensitivityReport, to_json};
use crate::run::check_build;
use crate::sensitivity::{find, is_found_so, open_tensors};
use briquette_core::{Error, ErrorKind, Remedy, Result, shown_path};
use briquette_formats::draft::FileLock;
use briquette_formats::{InputFile, draft, limits, presence};
use briquette_recipe::jobs::{sizes, sweep as jobs_of};
use briquette_recipe::raw::RawRecipe;
use briquette_recipe::{Recipe, paths};
use briquette_writer::{RunOptions, Workers};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time between two tries to take a lock.
const WAIT: Duration = Duration::from_millis(100);

/// A recipe with a budget, and its sizes.
#[derive(Debug, Clone)]
pub struct SweepRequest {
    /// The recipe; `budget.bytes` has the sizes: `6MB..23MB`, or a list.
    pub recipe: RawRecipe,
    /// The directory that its paths are relative to.
    pub directory: PathBuf,
    /// The directory of all outputs, the jobs file and the page.
    pub output: PathBuf,
    /// The number of sizes in a range, both ends included.
    pub n_points: usize,
    /// Other outputs to show beside these.
    pub also: Vec<PathBuf>,
}

/// Runs a recipe at several sizes.
///
/// The sensitivities are measured once and stored in `sweep.sensitivity.json`. The jobs are in `sweep.toml`,
/// and their page is `sweep.report.html`. Jobs run, resume and are sharded as in any batch.
///
/// # Errors
/// - Config: there is no budget, or nothing is evaluated.
/// - Refused: the directory has another sweep.
/// - See [`batch::run()`](crate::batch::run()).
pub fn sweep(
    request: &SweepRequest,
    how: &BatchOptions,
    options: &RunOptions,
    each: &mut dyn FnMut(&JobResult),
) -> Result<BatchReport> {
    let started = Instant::now();
    let path_error = |source| Error::io("cannot resolve", &request.output, source);
    let output = std::path::absolute(&request.output).map_err(path_error)?;
    let here = std::path::absolute(&request.directory).or_else(|_| std::env::current_dir()).map_err(path_error)?;
    let mut raw = request.recipe.clone();
    paths::resolve(&mut raw, &here);
    let budget =
        raw.budget.as_mut().ok_or_else(|| Error::config("budget.bytes: missing; set the sizes, such as 6MB..23MB"))?;
    let text =
        budget.bytes.clone().ok_or_else(|| Error::config("budget.bytes: missing; set the sizes, such as 6MB..23MB"))?;
    let sizes = sizes(&text, request.n_points)?;
    budget.bytes = sizes.last().map(|size| format!("{size}B"));
    raw.output.path = Some(output.join("model"));
    let recipe = Recipe::from_raw(raw.clone(), Path::new(""))?;
    if recipe.evaluate.is_none() {
        return Err(
            Error::config("nothing is evaluated; add an evaluate stage and its data, or pass --eval").at("sweep")
        );
    }
    check_build(&recipe)?;
    let path = output.join("sweep.toml");
    if presence::is_directory(&recipe.model)? {
        draft::check_apart(&path, &[&recipe.model])?;
    }
    std::fs::create_dir_all(&output).map_err(|source| Error::io("cannot create the directory", &output, source))?;
    let losses = recipe.budget.as_ref().is_some_and(|budget| budget.sensitivity.runs_model());
    let losses = losses.then(|| output.join("sweep.sensitivity.json"));
    if let Some((budget, path)) = raw.budget.as_mut().zip(losses.clone()) {
        (budget.sensitivity, budget.loss, budget.samples) = (None, None, None);
        budget.sensitivity_file = Some(path);
    }
    let also: Vec<PathBuf> =
        request.also.iter().map(std::path::absolute).collect::<std::io::Result<_>>().map_err(path_error)?;
    let mut start = BatchStart::at(started, (&path, &output), how.shard)?;
    put(&path, jobs_of(&raw, &output, &sizes, &also)?.as_bytes(), options.force)?;
    let measured = losses.map_or(Ok(()), |losses| measure(&recipe, &losses, &mut start.inputs, options));
    measured.map_err(|error| unmeasured(error, &path))?;
    run_locked(start, &Jobs::from_file(&path)?, how, options, each)
}

/// Measures the sensitivities and writes them, unless the file already has them. Shards wait for each other.
fn measure(recipe: &Recipe, path: &Path, inputs: &mut InputHasher, options: &RunOptions) -> Result<()> {
    let Some(how) = recipe.budget.as_ref().map(|budget| &budget.sensitivity) else { return Ok(()) };
    let checkpoint = crate::open::model(recipe)?;
    let contents = inputs.of_recipe(recipe, &checkpoint, &options.stop)?;
    let is_measured = |key: &str| ["model.path", "calibration.data"].contains(&key);
    let contents = contents.iter().filter(|(key, _)| is_measured(key));
    let contents = contents.map(|(key, hash)| (key.clone(), hash.to_string())).collect();
    let _alone = lock_of(path, options)?;
    if !options.force && is_found_so(path, how, &contents) {
        return Ok(());
    }
    let plan = briquette_recipe::plan::plan(recipe, &checkpoint, &options.stop)?;
    let open = open_tensors(&plan, None, &BTreeMap::new(), &checkpoint, &Workers::new(options)?)?;
    let found = find(recipe, how, &open, &checkpoint, options)?;
    options.progress.end();
    draft::replace_file(path, &to_json(&SensitivityReport { contents, ..found })?)
}

/// Waits for the lock of a file of sensitivities.
fn lock_of(path: &Path, options: &RunOptions) -> Result<FileLock> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lock = path.with_file_name(format!(".{name}.lock"));
    loop {
        match FileLock::alone(&lock)? {
            Some(lock) => return Ok(lock),
            None => options.stop.check()?,
        }
        std::thread::sleep(WAIT);
    }
}

/// Adds the remaining files to the error of a sweep that was stopped before its first job.
fn unmeasured(error: Error, jobs: &Path) -> Error {
    match error.kind {
        ErrorKind::Interrupted(_) => {
            let message = format!(
                "{}; no output was written; {} remains: run it again to start anew, or remove it",
                error.message,
                shown_path(jobs)
            );
            Error { message, ..error }
        }
        _ => error,
    }
}

/// Writes a file that does not exist, or checks that an existing file is the same.
fn put(path: &Path, bytes: &[u8], may_replace: bool) -> Result<()> {
    if may_replace || !presence::exists(path)? {
        return draft::replace_file(path, bytes);
    }
    if InputFile::open(path)?.read_all(limits::MAX_JSON_BYTES)? == bytes {
        return Ok(());
    }
    let message = "belongs to another sweep; choose another directory";
    Err(Error::refused(message).with_remedy(Remedy::Replace).at(shown_path(path)))
}
