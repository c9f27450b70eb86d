//! Expands a jobs file to its jobs: the `[[job]]` tables, then every point of the matrix.

use super::file::{JobsFile, name_of};
use super::job::Job;
use super::matrix::JobMatrix;
use super::multiplied::Multiplied;
use super::raw::{RawJob, RawJobs};
use crate::parse::Recipe;
use briquette_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Number of matrix points that are tried to find one with a valid recipe.
const N_TRIED: usize = 1000;

/// Returns every job. An invalid recipe fails only its own job; if all are invalid, returns the first error.
pub(super) fn expand(file: &Arc<JobsFile>, raw: &RawJobs) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = raw.job.iter().enumerate().map(|(index, job)| written(file, index, job)).collect();
    let mut is_any_sound = jobs.iter().any(|job| job.recipe().is_ok());
    match (&raw.base, raw.matrix.is_empty()) {
        (None, true) => {}
        (Some(base), false) => {
            let matrix = JobMatrix::new(&raw.matrix).map_err(|error| file.locate(error.at("matrix"), &["matrix"]))?;
            let (more, is_sound) = multiplied(file, base, matrix).unwrap_or_else(|error| {
                let error = file.locate(error.at("base"), &["base"]);
                (vec![Job::unsound(base.name.clone().unwrap_or("base".into()), &error)], false)
            });
            jobs.extend(more);
            is_any_sound |= is_sound;
        }
        (Some(_), true) => return Err(lacks(file, "base", "there is no [matrix] for it; add one")),
        (None, false) => return Err(lacks(file, "matrix", "there is no [base] for it; add one")),
    }
    match jobs.first() {
        None => Err(Error::config("there is no [[job]] and no [matrix]; nothing to do").at(file.path().display())),
        Some(first) if !is_any_sound => first.recipe().map(|_| jobs),
        Some(_) => Ok(jobs),
    }
}

/// Returns the job of a `[[job]]` table.
fn written(file: &JobsFile, index: usize, raw: &RawJob) -> Job {
    let (place, called) = (["job", &index.to_string()], format!("job {}", index + 1));
    let made = file.changed(raw, &place).and_then(|recipe| {
        let recipe = Recipe::from_raw(recipe, Path::new(""))?;
        Ok(Job::written(name_of(raw.name.clone(), &recipe.output)?, recipe))
    });
    made.unwrap_or_else(|error| {
        let error = file.locate(error.at(&called), &place);
        Job::unsound(raw.name.clone().unwrap_or(called), &error)
    })
}

fn lacks(file: &JobsFile, key: &str, what: &str) -> Error {
    file.locate(Error::config(what).at(key), &[key])
}

/// Returns a job for every point of a matrix, and whether any has a valid recipe.
///
/// A large matrix is sampled evenly for that check.
///
/// # Errors
/// Config: the base is invalid, or its output has a placeholder that is not an axis.
fn multiplied(file: &Arc<JobsFile>, base: &RawJob, matrix: JobMatrix) -> Result<(Vec<Job>, bool)> {
    let all = Arc::new(Multiplied::new(file, base, matrix)?);
    let n = all.len();
    let job = |index: usize| {
        let (name, output) = all.called(index)?;
        Ok(Job::point(name, output, all.clone(), index))
    };
    let jobs = (0..n).map(job).collect::<Result<_>>()?;
    let is_any_sound = (0..n).step_by(n.div_ceil(N_TRIED).max(1)).any(|index| all.recipe(index).is_ok());
    Ok((jobs, is_any_sound))
}
