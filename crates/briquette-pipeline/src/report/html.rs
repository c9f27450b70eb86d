//! The report as one self-contained page.

use super::Report;

/// The page.
pub fn to_html(report: &Report) -> String {
    format!("<!doctype html><title>{}</title>", report.model)
}
