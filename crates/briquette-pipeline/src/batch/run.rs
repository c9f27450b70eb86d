//! Running jobs one after another. One that fails leaves the others alone.

use super::identity::{self, InputHasher};
use super::journal::{Journal, Line, Made};
use super::{BatchReport, Job, JobResult, JobStatus, Jobs, Shard, plan};
use crate::context::{RunOptions, Workers};
use crate::recipe::Recipe;
use crate::verify;
use briquette_core::{Error, Hash128, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

/// How to run a batch, as opposed to its jobs.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions {
    /// Skip jobs that are done and whose input, recipe and output are still what they were.
    pub resume: bool,
    /// Which jobs to take.
    pub shard: Shard,
}

/// Runs the jobs of a shard in order; `each` hears of every one as soon as it is over.
///
/// Recipes and headers of all jobs are looked at before the first one runs. What is wrong with a job is in its result.
///
/// # Errors
/// Io where the journal cannot be written; Interrupted.
pub fn run(
    jobs: &Jobs,
    how: &BatchOptions,
    options: &RunOptions,
    each: &mut dyn FnMut(&JobResult),
) -> Result<BatchReport> {
    let journal = Journal::start(jobs, how.shard, how.resume)?;
    let mut batch = Batch { options, resume: how.resume, journal, inputs: InputHasher::default() };
    let mine: Vec<(usize, &Job)> = how.shard.pick(&jobs.jobs.iter().enumerate().collect::<Vec<_>>()).copied().collect();
    let mut results: Vec<Option<JobResult>> = Vec::new();
    for (index, job) in &mine {
        options.stop.check()?;
        results.push(batch.look(job, &jobs.jobs[..*index])?.inspect(|result| each(result)));
    }
    for (slot, (_, job)) in results.iter_mut().zip(&mine) {
        if slot.is_none() {
            let result = batch.finish(job)?;
            each(&result);
            *slot = Some(result);
        }
    }
    Ok(report(jobs, how.shard, &batch.journal.path, results.into_iter().flatten().collect()))
}

fn report(jobs: &Jobs, shard: Shard, journal: &Path, results: Vec<JobResult>) -> BatchReport {
    let count = |status: JobStatus| results.iter().filter(|result| result.status == status).count();
    BatchReport {
        jobs_file: jobs.path.clone(),
        journal: journal.to_path_buf(),
        shard: (!shard.is_whole()).then(|| shard.to_string()),
        n_done: count(JobStatus::Done),
        n_skipped: count(JobStatus::Skipped),
        n_failed: count(JobStatus::Failed),
        jobs: results,
    }
}

struct Batch<'a> {
    options: &'a RunOptions,
    resume: bool,
    journal: Journal,
    inputs: InputHasher,
}

/// What a job came to.
struct Finished {
    status: JobStatus,
    made: Made,
    redone: Option<String>,
}

/// Whether a job has to be done, and why.
enum Before {
    /// It is done, and this is what it made.
    Done(Made),
    /// Something is there that this job may replace.
    Stale(String),
    /// Nothing of ours is there.
    Nothing,
}

impl Batch<'_> {
    /// The result of a job that cannot be done, as far as recipe and headers show.
    fn look(&self, job: &Job, earlier: &[Job]) -> Result<Option<JobResult>> {
        if plan::waits_for(job, earlier)?.is_some() {
            return Ok(None);
        }
        let started = Instant::now();
        match guard(|| plan::look(job, &self.options.device)) {
            Ok(_) => Ok(None),
            Err(error) => self.conclude(job, None, started, Err(error)).map(Some),
        }
    }

    /// Does a job, and writes down what came of it.
    fn finish(&mut self, job: &Job) -> Result<JobResult> {
        let started = Instant::now();
        let mut input = None;
        self.options.progress.begin(&job.name, 0);
        let outcome = guard(|| self.work(job, &mut input));
        self.options.progress.end();
        match outcome {
            Err(error) if identity::is_stop(&error) => {
                let message = format!("job {:?}: {error}; --resume goes on from here", job.name);
                Err(Error { message, ..error })
            }
            outcome => self.conclude(job, input, started, outcome),
        }
    }

    fn work(&mut self, job: &Job, input: &mut Option<Hash128>) -> Result<Finished> {
        let recipe = job.recipe()?;
        let checkpoint = recipe.open_model()?;
        let hash = self.inputs.hash(recipe, &checkpoint, &self.options.stop)?;
        *input = Some(hash);
        let before = if self.resume { self.before(recipe, hash)? } else { Before::Nothing };
        let redone = match before {
            Before::Done(made) => return Ok(Finished { status: JobStatus::Skipped, made, redone: None }),
            Before::Stale(why) => Some(why),
            Before::Nothing => None,
        };
        let force = self.options.force || redone.is_some();
        let report = crate::run(recipe, &RunOptions { force, ..self.options.clone() })?;
        checkpoint.check_unchanged()?;
        let made = Made {
            sums: identity::of_output(&recipe.output)?,
            report: identity::of_report(&recipe.output)?,
            before_bytes: report.before.file_bytes,
            after_bytes: report.after.file_bytes,
        };
        Ok(Finished { status: JobStatus::Done, made, redone })
    }

    /// Holds what the journal says of a job against what is there.
    fn before(&self, asked: &Recipe, input: Hash128) -> Result<Before> {
        let recipe = identity::of_recipe(asked)?;
        let name = self.journal.name_of(&asked.output)?;
        let lines: Vec<&Line> = self.journal.done_at(&name).collect();
        let Some(last) = lines.last() else {
            let is_ours = identity::is_made_by(asked)?;
            return Ok(if is_ours {
                Before::Stale("the journal does not say it is done".into())
            } else {
                Before::Nothing
            });
        };
        let mut why = if last.recipe == recipe { "the input changed".to_string() } else { "the recipe changed".into() };
        for line in lines.iter().filter(|line| line.input == Some(input) && line.recipe == recipe) {
            let Some(made) = &line.made else { continue };
            match self.check_output(&asked.output, made) {
                Ok(()) => return Ok(Before::Done(made.clone())),
                Err(error) if identity::is_stop(&error) => return Err(error),
                Err(error) => why = format!("the output is not what it was: {error}"),
            }
        }
        Ok(Before::Stale(why))
    }

    /// Hashes every file of an output again.
    fn check_output(&self, output: &Path, made: &Made) -> Result<()> {
        verify::check_sums(output, &Workers::new(self.options)?)?;
        if identity::of_output(output)? != made.sums || identity::of_report(output)? != made.report {
            return Err(Error::input("its sums or its report were written by another run").at(output.display()));
        }
        Ok(())
    }

    /// The result of a job, after its line is on disk. A skipped job has its line already.
    fn conclude(
        &self,
        job: &Job,
        input: Option<Hash128>,
        started: Instant,
        outcome: Result<Finished>,
    ) -> Result<JobResult> {
        let seconds = started.elapsed().as_secs_f64();
        let status = outcome.as_ref().map_or(JobStatus::Failed, |finished| finished.status);
        let made = outcome.as_ref().ok().map(|finished| finished.made.clone());
        let error = outcome.as_ref().err();
        if status != JobStatus::Skipped {
            self.journal.append(&Line {
                job: job.name.clone(),
                status,
                output: job.output().map(|output| self.journal.name_of(output)).transpose()?,
                input,
                recipe: job.recipe().ok().map(identity::of_recipe).transpose()?.unwrap_or_default(),
                made: made.clone(),
                seconds,
                error: error.map(ToString::to_string),
            })?;
        }
        let made = made.as_ref();
        Ok(JobResult {
            job: job.name.clone(),
            status,
            output: job.output().map(Path::to_path_buf),
            before_bytes: made.map(|made| made.before_bytes),
            after_bytes: made.map(|made| made.after_bytes),
            ratio: made.map(|made| made.before_bytes as f64 / made.after_bytes.max(1) as f64),
            seconds,
            error: error.map(ToString::to_string),
            exit_code: error.map(Error::exit_code),
            redone: outcome.ok().and_then(|finished| finished.redone),
        })
    }
}

/// A bug that one job meets must not cost the others.
fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::bug("the job panicked; please report this")))
}
