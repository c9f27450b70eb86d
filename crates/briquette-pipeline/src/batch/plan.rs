//! What each job would come to, from headers alone.

use super::{Job, Jobs, distinct};
use crate::context::Stop;
use crate::memory;
use crate::plan::Plan;
use briquette_core::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a job would come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobPlan {
    /// Its name.
    pub job: String,
    /// The directory it would write; none where its recipe does not say.
    pub output: Option<PathBuf>,
    /// Bytes of the weight files now.
    pub before_bytes: Option<u64>,
    /// Bytes of the weight files it would write.
    pub predicted_bytes: Option<u64>,
    /// Whether it would write exactly that, or at most that.
    pub is_exact: bool,
    /// What would go wrong.
    pub error: Option<String>,
    /// The job whose output it reads, where that is not there yet.
    pub waits_for: Option<String>,
}

/// Plans every job, as it would run on the device with this name; nothing is written.
///
/// # Errors
/// Bug, where a bound cannot be computed; what is wrong with a job is in its plan.
pub fn plan(jobs: &Jobs, device: &str) -> Result<Vec<JobPlan>> {
    jobs.jobs.iter().enumerate().map(|(index, job)| plan_one(job, &jobs.jobs[..index], device)).collect()
}

fn plan_one(job: &Job, earlier: &[Job], device: &str) -> Result<JobPlan> {
    let mut plan = JobPlan {
        job: job.name.clone(),
        output: job.output().map(Path::to_path_buf),
        before_bytes: None,
        predicted_bytes: None,
        is_exact: false,
        error: None,
        waits_for: waits_for(job, earlier)?.map(|maker| maker.name.clone()),
    };
    if plan.waits_for.is_some() {
        return Ok(plan);
    }
    match look(job, device) {
        Ok((before_bytes, prediction)) => {
            plan.before_bytes = Some(before_bytes);
            (plan.predicted_bytes, plan.is_exact) = (Some(prediction.n_bytes), prediction.is_exact);
        }
        Err(error) => plan.error = Some(error.to_string()),
    }
    Ok(plan)
}

/// Opens the model and plans: what headers and recipe show to be wrong shows here.
pub(super) fn look(job: &Job, device: &str) -> Result<(u64, crate::plan::Prediction), Error> {
    let recipe = job.recipe()?;
    memory::check(recipe, device)?;
    let checkpoint = recipe.open_model()?;
    Ok((checkpoint.weight_bytes(), Plan::new(recipe, &checkpoint, &Stop::default())?.predict()?))
}

/// The earlier job that makes the model this job reads, while it is not there.
pub(super) fn waits_for<'a>(job: &Job, earlier: &'a [Job]) -> Result<Option<&'a Job>> {
    let Some(model) = job.recipe.as_ref().ok().map(|recipe| &recipe.model).filter(|model| !model.exists()) else {
        return Ok(None);
    };
    let model = distinct::resolve(model)?;
    for maker in earlier {
        if let Some(output) = maker.output()
            && model.starts_with(distinct::resolve(output)?)
        {
            return Ok(Some(maker));
        }
    }
    Ok(None)
}
