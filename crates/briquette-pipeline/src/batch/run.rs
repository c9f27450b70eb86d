//! Runs jobs one after another. A failed job does not affect the others.

use super::files::BatchFiles;
use super::journal::{BegunJob, JobOutput, Journal, JournalLine};
use super::shared::{SharedTrainings, TrainingPlace};
use super::{Job, Jobs, Shard, plan};
use crate::contents::{InputHasher, InputHashes, changed};
use crate::report::{BatchReport, JobResult, JobStatus, OtherOutput, Report, html};
use crate::run::run_of_batch;
use crate::staged::OfBatch;
use crate::{identity, verify};
use briquette_core::{Error, Result};
use briquette_formats::draft::FileLock;
use briquette_formats::{contained, draft, json, limits, manifest, presence};
use briquette_recipe::Recipe;
use briquette_writer::context::{RunOptions, Workers};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

/// Options of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Whether to skip finished jobs with unchanged input, recipe and output.
    pub resume: bool,
    /// The shard of jobs to run.
    pub shard: Shard,
}

/// Runs the jobs of a shard in order, and calls `each` after every job.
///
/// The recipes and headers of all jobs are checked before the first one runs. Errors of a job are in its
/// result. A page of all jobs is written at the end, even after an early end.
///
/// # Errors
/// - Refused: another process runs these jobs.
/// - Io: the journal or the page cannot be written.
/// - Interrupted: a stop was requested.
pub fn run(
    jobs: &Jobs,
    how: &BatchOptions,
    options: &RunOptions,
    each: &mut dyn FnMut(&JobResult),
) -> Result<BatchReport> {
    let start = BatchStart::at(Instant::now(), (&jobs.path, &jobs.directory), how.shard)?;
    run_locked(start, jobs, how, options, each)
}

/// The start of a batch, whose jobs no other process runs while this lives.
pub(crate) struct BatchStart {
    since: Instant,
    _locks: Vec<FileLock>,
    /// The hashes of files so far.
    pub(crate) inputs: InputHasher,
}

impl BatchStart {
    /// Locks the jobs of a file, whose outputs are all in `directory`. The report counts time from `since`.
    ///
    /// # Errors
    /// - Refused: another process runs these jobs.
    /// - Io: a lock file cannot be created.
    pub(crate) fn at(since: Instant, (path, directory): (&Path, &Path), shard: Shard) -> Result<Self> {
        let locks = BatchFiles::of(path, directory, shard)?.lock()?;
        Ok(Self { since, _locks: locks, inputs: InputHasher::default() })
    }
}

/// Implements [`run`] for locked jobs.
pub(crate) fn run_locked(
    start: BatchStart,
    jobs: &Jobs,
    how: &BatchOptions,
    options: &RunOptions,
    each: &mut dyn FnMut(&JobResult),
) -> Result<BatchReport> {
    let beside = BatchFiles::of(&jobs.path, &jobs.directory, how.shard)?;
    let also = jobs.also.iter().map(|output| other(output)).collect::<Result<Vec<_>>>()?;
    if !how.resume && !options.force {
        check_is_first(&beside)?;
    }
    let journal = Journal::start(&beside, how.resume)?;
    let (BatchStart { since, _locks, inputs }, shared) = (start, SharedTrainings::at(beside.shared.clone()));
    let mut batch = BatchRun { jobs, options, resume: how.resume, journal, inputs, shared };
    let mine: Vec<usize> = how.shard.pick(&(0..jobs.jobs.len()).collect::<Vec<_>>()).copied().collect();
    let mut results: Vec<Option<JobResult>> = vec![None; mine.len()];
    let outcome = batch.run_all(&mine, &mut results, each);
    let n_left = results.iter().filter(|result| result.is_none()).count();
    let mut report = report(jobs, how.shard, (&beside, also), results.into_iter().flatten().collect());
    batch.shared.end(outcome.is_ok() && report.n_failed == 0);
    report.seconds = since.elapsed().as_secs_f64();
    let written = draft::replace_file(&beside.page, html::of_batch(&report, n_left).as_bytes());
    outcome.and(written).map(|()| report)
}

/// Refuses to repeat a batch whose outputs exist: each of its jobs would fail for the same reason.
fn check_is_first(beside: &BatchFiles) -> Result<()> {
    let n_finished = Journal::n_finished(beside)?;
    if n_finished == 0 {
        return Ok(());
    }
    let outputs = if n_finished == 1 { "output exists" } else { "outputs exist" };
    let message = format!(
        "{n_finished} {outputs} from an earlier run; skip finished, unchanged jobs with --resume, or replace all with --force"
    );
    Err(Error::refused(message).at(beside.journal.display()))
}

/// Reads the report of an output that was made elsewhere.
fn other(output: &Path) -> Result<OtherOutput> {
    let path = output.join("report.json");
    let file = contained::open(output, Path::new("report.json"))?;
    let report: Report = json::parse(&file.read_all(limits::MAX_OWN_BYTES)?, "the report", &path)?;
    let metrics = report.evaluation.iter().flat_map(|found| &found.metrics);
    Ok(OtherOutput {
        name: output.file_name().unwrap_or(output.as_os_str()).to_string_lossy().into_owned(),
        output: output.to_path_buf(),
        after_bytes: report.after.file_bytes,
        metrics: metrics.map(|(name, value)| (name.clone(), Some(*value).filter(|value| value.is_finite()))).collect(),
    })
}

fn report(
    jobs: &Jobs,
    shard: Shard,
    (beside, also): (&BatchFiles, Vec<OtherOutput>),
    results: Vec<JobResult>,
) -> BatchReport {
    let count = |status: JobStatus| results.iter().filter(|result| result.status == status).count();
    BatchReport {
        jobs_file: jobs.path.clone(),
        journal: beside.journal.clone(),
        page: beside.page.clone(),
        shard: (!shard.is_whole()).then(|| shard.to_string()),
        n_done: count(JobStatus::Done),
        n_skipped: count(JobStatus::Skipped),
        n_failed: count(JobStatus::Failed),
        seconds: 0.0,
        jobs: results,
        also,
    }
}

struct BatchRun<'a> {
    jobs: &'a Jobs,
    options: &'a RunOptions,
    resume: bool,
    journal: Journal,
    inputs: InputHasher,
    shared: SharedTrainings,
}

/// The outcome of a job.
struct JobOutcome {
    status: JobStatus,
    made: JobOutput,
    redone: Option<String>,
    /// The duration in seconds when the job first ran.
    seconds_before: Option<f64>,
    /// The job of this run that did the shared training.
    trained_with: Option<String>,
}

/// What a resumed batch finds for a job.
enum Before {
    /// The job is done, with this output and duration in seconds.
    Done(JobOutput, f64),
    /// The job must run again and may replace its output, for this reason.
    Stale(String),
    /// There is no output of this job.
    Nothing,
}

impl BatchRun<'_> {
    /// Checks every job, then runs those that can run. Fills in the results one by one.
    fn run_all(
        &mut self,
        mine: &[usize],
        results: &mut [Option<JobResult>],
        each: &mut dyn FnMut(&JobResult),
    ) -> Result<()> {
        for (slot, index) in results.iter_mut().zip(mine) {
            self.options.stop.check()?;
            *slot = self.look(*index)?.inspect(|result| each(result));
        }
        for (slot, index) in results.iter_mut().zip(mine).filter(|(slot, _)| slot.is_none()) {
            let result = self.finish(&self.jobs.jobs[*index])?;
            each(&result);
            *slot = Some(result);
        }
        Ok(())
    }

    /// Returns the result of a job that cannot run, as far as its recipe and headers show.
    fn look(&mut self, index: usize) -> Result<Option<JobResult>> {
        let (job, started) = (&self.jobs.jobs[index], Instant::now());
        let looked = guard(|| {
            let recipe = job.recipe()?;
            if plan::waits_for(&recipe, self.jobs, index)?.is_none() {
                plan::look(&recipe, &self.options.device)?;
            }
            self.shared.count(&recipe, self.options)
        });
        match looked {
            Ok(()) => Ok(None),
            Err(error) => self.conclude(job, InputHashes::new(), started, Err(error)).map(Some),
        }
    }

    /// Runs a job and records its result.
    fn finish(&mut self, job: &Job) -> Result<JobResult> {
        let started = Instant::now();
        let mut inputs = InputHashes::new();
        self.options.progress.begin(&job.name, 0);
        let place = job.recipe().and_then(|recipe| self.shared.place_of(&recipe, self.options))?;
        let outcome = guard(|| self.work(job, place.as_ref(), &mut inputs));
        self.options.progress.end();
        if let Err(error) = &outcome
            && identity::is_stop(error)
        {
            let message = format!("job {:?}: {error}; --resume continues from here", job.name);
            return Err(Error { message, kind: error.kind, source: None, remedy: error.remedy.clone() });
        }
        if let Some(place) = &place {
            let status = outcome.as_ref().map(|finished| finished.status).ok();
            self.shared.over(place, &job.name, status);
        }
        self.conclude(job, inputs, started, outcome)
    }

    fn work(&mut self, job: &Job, place: Option<&TrainingPlace>, inputs: &mut InputHashes) -> Result<JobOutcome> {
        let recipe = job.recipe()?;
        let checkpoint = crate::open::model(&recipe)?;
        *inputs = self.inputs.of_recipe(&recipe, &checkpoint, &self.options.stop)?;
        let before = if self.resume { self.before(&recipe, inputs)? } else { Before::Nothing };
        let redone = match before {
            Before::Done(made, seconds) => {
                let (status, seconds_before) = (JobStatus::Skipped, Some(seconds));
                return Ok(JobOutcome { status, made, redone: None, seconds_before, trained_with: None });
            }
            Before::Stale(why) => Some(why),
            Before::Nothing => None,
        };
        if !presence::has_entry(&recipe.output)? {
            self.journal.begin(self.begun(&recipe)?)?;
        }
        let options = RunOptions { force: self.options.force || redone.is_some(), ..self.options.clone() };
        let trained_with = place.and_then(|place| self.shared.trained_by(place)).map(str::to_string);
        let of_batch = OfBatch { contents: inputs, shared: place.map(|place| place.directory.as_path()) };
        let report = run_of_batch(&recipe, &options, Some(of_batch))?;
        checkpoint.check_unchanged()?;
        let found = report.evaluation.iter().flat_map(|found| &found.metrics);
        let made = JobOutput {
            sums: identity::of_output(&recipe.output)?,
            report: identity::of_report(&recipe.output)?,
            before_bytes: report.before.file_bytes,
            after_bytes: report.after.file_bytes,
            note: report.unused_budget(),
            metrics: found
                .map(|(name, value)| (name.clone(), Some(*value).filter(|value| value.is_finite())))
                .collect(),
        };
        Ok(JobOutcome { status: JobStatus::Done, made, redone, seconds_before: None, trained_with })
    }

    /// Compares the journal's lines of a job with the files on disk.
    fn before(&self, requested: &Recipe, inputs: &InputHashes) -> Result<Before> {
        let recipe = identity::of_recipe(requested)?;
        let lines = self.journal.done_at(&self.journal.name_of(&requested.output)?);
        let Some(last) = lines.last() else {
            let is_ours = presence::exists(&requested.output.join(manifest::FILE_NAME))?
                && (self.journal.is_unfinished(&self.begun(requested)?) || identity::is_made_by(requested)?);
            return Ok(if is_ours {
                Before::Stale("the journal does not list it as done".into())
            } else {
                Before::Nothing
            });
        };
        let mut why = match last.recipe == recipe {
            true => format!("the content of {} changed", changed(&last.inputs, inputs).join(", ")),
            false => "the recipe changed".into(),
        };
        for line in lines.iter().filter(|line| line.inputs == *inputs && line.recipe == recipe) {
            let Some(made) = &line.made else { continue };
            match self.check_output(&requested.output, made) {
                Ok(()) => return Ok(Before::Done(made.clone(), line.seconds)),
                Err(error) if identity::is_stop(&error) => return Err(error),
                Err(error) => why = format!("the output changed: {error}"),
            }
        }
        Ok(Before::Stale(why))
    }

    fn begun(&self, requested: &Recipe) -> Result<BegunJob> {
        Ok(BegunJob { begun: self.journal.name_of(&requested.output)?, recipe: identity::of_recipe(requested)? })
    }

    /// Checks the hash of every file of an output.
    fn check_output(&self, output: &Path, made: &JobOutput) -> Result<()> {
        verify::check_sums(output, &Workers::new(self.options)?)?;
        if identity::of_output(output)? != made.sums || identity::of_report(output)? != made.report {
            return Err(Error::input("its SHA256SUMS or its report were written by another run").at(output.display()));
        }
        Ok(())
    }

    /// Adds the line of a job to the journal.
    fn write_down(&self, job: &Job, inputs: InputHashes, seconds: f64, outcome: &Result<JobOutcome>) -> Result<()> {
        let finished = outcome.as_ref().ok();
        self.journal.append(&JournalLine {
            job: job.name.clone(),
            status: finished.map_or(JobStatus::Failed, |finished| finished.status),
            output: job.output().map(|output| self.journal.name_of(output)).transpose()?,
            inputs,
            recipe: job.recipe().ok().as_ref().map(identity::of_recipe).transpose()?.unwrap_or_default(),
            made: finished.map(|finished| finished.made.clone()),
            seconds,
            error: outcome.as_ref().err().map(ToString::to_string),
        })
    }

    /// Returns the result of a job after writing its line to disk. A skipped job already has a line.
    fn conclude(
        &self,
        job: &Job,
        inputs: InputHashes,
        started: Instant,
        outcome: Result<JobOutcome>,
    ) -> Result<JobResult> {
        let seconds = started.elapsed().as_secs_f64();
        let status = outcome.as_ref().map_or(JobStatus::Failed, |finished| finished.status);
        if status != JobStatus::Skipped {
            self.write_down(job, inputs, seconds, &outcome)?;
        }
        let error = outcome.as_ref().err();
        let (exit_code, error) = (error.map(Error::exit_code), error.map(crate::advised));
        let finished = outcome.ok();
        let made = finished.as_ref().map(|finished| &finished.made);
        Ok(JobResult {
            job: job.name.clone(),
            status,
            output: job.output().map(Path::to_path_buf),
            before_bytes: made.map(|made| made.before_bytes),
            after_bytes: made.map(|made| made.after_bytes),
            ratio: made.map(|made| made.before_bytes as f64 / made.after_bytes.max(1) as f64),
            metrics: made.map(|made| made.metrics.clone()).unwrap_or_default(),
            note: made.and_then(|made| made.note.clone()),
            seconds,
            seconds_before: finished.as_ref().and_then(|finished| finished.seconds_before),
            trained_with: finished.as_ref().and_then(|finished| finished.trained_with.clone()),
            redone: finished.as_ref().and_then(|finished| finished.redone.clone()),
            error,
            exit_code,
        })
    }
}

/// Converts a panic into an error, so that a bug in one job does not stop the others.
fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::bug("the job panicked; please report this")))
}
