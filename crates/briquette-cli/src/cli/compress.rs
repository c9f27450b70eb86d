//! Runs one recipe and prints its report.

use super::common::Common;
use super::options::options;
use super::show::show;
use super::text;
use briquette::pipeline::report;
use briquette::{Recipe, Report, Result};

/// Runs a recipe.
pub(super) fn compress(common: &Common, recipe: &Recipe, force: bool) -> Result<u8> {
    let report = briquette::run(recipe, &options(common, force)?)?;
    show(common, &report, || Ok(report_text(&report)))
}

/// Returns a report as text for the terminal.
pub(super) fn report_text(report: &Report) -> String {
    report::terminal::to_terminal(report, text::width(), text::has_color())
}
