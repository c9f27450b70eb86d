//! Plans each job from headers alone.

use super::{Job, Jobs};
use crate::distill::student_of;
use crate::memory;
use briquette_core::{Error, Result};
use briquette_formats::presence;
use briquette_recipe::{Recipe, paths};
use briquette_writer::context::Stop;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The plan of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobPlan {
    /// The name of the job.
    pub job: String,
    /// The output directory; `None` if the recipe does not set one.
    pub output: Option<PathBuf>,
    /// The size of the current weight files in bytes.
    pub before_bytes: Option<u64>,
    /// The predicted size of the output's weight files in bytes.
    pub predicted_bytes: Option<u64>,
    /// Whether the predicted size is exact, rather than an upper bound.
    pub is_exact: bool,
    /// The predicted error.
    pub error: Option<String>,
    /// The job whose output this job reads, if that output does not exist yet.
    pub waits_for: Option<String>,
}

/// Plans every job for a device without writing anything.
///
/// # Errors
/// Bug: a bound cannot be computed. Errors of a job are in its plan.
pub fn plan(jobs: &Jobs, device: &str) -> Result<Vec<JobPlan>> {
    (0..jobs.jobs.len()).map(|index| plan_one(jobs, index, device)).collect()
}

fn plan_one(jobs: &Jobs, index: usize, device: &str) -> Result<JobPlan> {
    let job = &jobs.jobs[index];
    let recipe = job.recipe();
    let mut plan = JobPlan {
        job: job.name.clone(),
        output: job.output().map(Path::to_path_buf),
        before_bytes: None,
        predicted_bytes: None,
        is_exact: false,
        error: None,
        waits_for: recipe
            .as_ref()
            .map_or(Ok(None), |recipe| waits_for(recipe, jobs, index))?
            .map(|maker| maker.name.clone()),
    };
    if plan.waits_for.is_some() {
        return Ok(plan);
    }
    match recipe.and_then(|recipe| look(&recipe, device)) {
        Ok((before_bytes, prediction)) => {
            plan.before_bytes = Some(before_bytes);
            (plan.predicted_bytes, plan.is_exact) = (Some(prediction.n_bytes), prediction.is_exact);
        }
        Err(error) => plan.error = Some(crate::advised(&error)),
    }
    Ok(plan)
}

/// Opens the model and plans, which finds errors in the headers and the recipe.
pub(super) fn look(recipe: &Recipe, device: &str) -> Result<(u64, briquette_writer::plan::Prediction), Error> {
    memory::check(recipe, device)?;
    paths::check_data(&recipe.read)?;
    let checkpoint = crate::open::model(recipe)?;
    let student = student_of(recipe, &checkpoint)?;
    let plan = briquette_recipe::plan::plan_of(recipe, &checkpoint, student.as_deref(), &Stop::default())?;
    Ok((checkpoint.weight_bytes(), plan.predict()?))
}

/// Returns the earlier job that makes an input of this job, if the input does not exist yet.
pub(super) fn waits_for<'a>(recipe: &Recipe, jobs: &'a Jobs, index: usize) -> Result<Option<&'a Job>> {
    for named in &recipe.read {
        if !presence::exists(&named.path)?
            && let Some(maker) = jobs.maker_of(&named.path, index)?
        {
            return Ok(Some(maker));
        }
    }
    Ok(None)
}
