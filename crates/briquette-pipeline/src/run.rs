//! Runs a recipe: its parts that train or factorize, its file stages, then a training of scales.

use crate::report::{Origin, Report};
use crate::staged::{self, OfBatch};
use crate::unwritten::unwritten;
use crate::{compress, hub};
use crate::{memory, solve};
use briquette_core::Result;
use briquette_recipe::{Recipe, paths};
use briquette_writer::context::RunOptions;

/// Compresses a model as a recipe says. The output appears only when it is complete and verified.
///
/// # Errors
/// - Config: the recipe is invalid or does not match the model.
/// - Input: the model or data is damaged.
/// - Refused: a policy of the recipe forbids the result.
/// - Io: a file cannot be read or written, or there is too little space.
/// - Interrupted: a stop was requested.
pub fn run(recipe: &Recipe, options: &RunOptions) -> Result<Report> {
    run_of_batch(recipe, options, None)
}

/// Implements [`run`], with the facts of a batch if the recipe is one of its jobs.
pub(crate) fn run_of_batch(recipe: &Recipe, options: &RunOptions, of_batch: Option<OfBatch>) -> Result<Report> {
    let origin = Origin::of(recipe);
    // Finds errors before hours of work.
    let checked = check_build(recipe)
        .and_then(|()| recipe.check_has_files())
        .and_then(|()| memory::check(recipe, &options.device))
        .and_then(|()| paths::check_data(&recipe.read));
    let report = checked.and_then(|()| match recipe.parts.is_empty() && recipe.scales.is_none() {
        true if !solve::is_requested(recipe) => compress::compress(recipe, options, &origin, None).map_err(unwritten),
        _ => staged::run(recipe, options, of_batch, origin.started),
    });
    options.progress.end();
    report.map_err(|error| hub::explain(error, recipe))
}

/// Refuses a recipe that runs a model, before anything is read.
#[cfg(not(feature = "model"))]
pub(crate) fn check_build(recipe: &Recipe) -> Result<()> {
    let key = match recipe {
        Recipe { calibration: Some(_), .. } => "calibration.data",
        Recipe { evaluate: Some(_), .. } => "data.eval",
        _ => return Ok(()),
    };
    Err(briquette_core::Error::lacks_feature("model", "run models").at(key))
}

/// Accepts every recipe in this build.
#[cfg(feature = "model")]
pub(crate) fn check_build(_recipe: &Recipe) -> Result<()> {
    Ok(())
}
