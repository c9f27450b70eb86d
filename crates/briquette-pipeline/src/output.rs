//! The output of a recipe's stages that work on files, with a budget or without.

use crate::budget;
use crate::compress::{Drafted, draft_of_size};
use briquette_core::{Error, Result};
use briquette_flow::RunOptions;
use briquette_formats::Draft;
use briquette_recipe::Recipe;
use briquette_report::{Origin, Report};
use std::path::Path;

/// The stages of a recipe that work on files.
pub(crate) fn compress(
    recipe: &Recipe,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<Report> {
    let (draft, report) = compressed_draft(recipe, options, origin, scratch)?;
    draft.publish()?;
    Ok(report)
}

/// The output of those stages, whole and verified, and not yet in its place. Where they look at the inputs of layers or move weights,
/// what is found of each block is kept in `scratch` until all is done.
pub(crate) fn compressed_draft(
    recipe: &Recipe,
    options: &RunOptions,
    origin: &Origin,
    scratch: Option<&Path>,
) -> Result<(Draft, Report)> {
    if let Some(asked) = &recipe.budget {
        return budget::draft(recipe, asked, options, origin, scratch);
    }
    match draft_of_size(recipe, options, origin, scratch, None)? {
        Drafted::Done(draft, report) => Ok((draft, *report)),
        Drafted::Missed(..) => Err(Error::bug("a draft of any size was too large")),
    }
}
