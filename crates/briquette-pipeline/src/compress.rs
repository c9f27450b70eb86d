//! The output of a recipe's file stages, with or without a budget.

use crate::budget;
use crate::file_stages::{Drafted, draft_of_size};
use crate::report::{Origin, Report};
use briquette_core::{Error, Result};
use briquette_formats::Draft;
use briquette_recipe::Recipe;
use briquette_writer::RunOptions;
use std::path::Path;

/// Runs the file stages of a recipe.
pub(crate) fn compress(
    recipe: &Recipe,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<Report> {
    let (draft, mut report) = compressed_draft(recipe, options, origin, scratch)?;
    finish(&mut report, origin, &draft)?;
    draft.publish()?;
    Ok(report)
}

/// Writes the report of a run into its draft, which is published next.
pub(crate) fn finish(report: &mut Report, origin: &Origin, draft: &Draft) -> Result<()> {
    report.finish(origin, draft).map_err(|error| draft.explain(error))
}

/// Makes the output of the file stages, verified but without its report and not published.
///
/// Stages that run the model or update weights store their results for each block in `scratch`.
pub(crate) fn compressed_draft(
    recipe: &Recipe,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<(Draft, Report)> {
    if let Some(target) = &recipe.budget {
        return budget::draft(recipe, target, options, origin, scratch);
    }
    match draft_of_size(recipe, options, origin, scratch, None)? {
        Drafted::Done(draft, report) => Ok((draft, *report)),
        Drafted::Missed(..) => Err(Error::bug("a draft without a size limit was too large")),
    }
}
