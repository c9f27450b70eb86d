//! Quality, latency and memory of the evaluation, before and after.

use super::escape::escape;
use super::frame::scrolling;
use super::measured::headings;
use crate::report::figures::ContinuationFigures;
use crate::report::{Report, running};
use maud::{Markup, html};

/// Returns the table of figures; empty without an evaluation.
pub(super) fn section(report: &Report) -> Markup {
    let Some(evaluation) = &report.evaluation else { return Markup::default() };
    let table = html! {
        table class="figures" {
            thead { (headings()) }
            tbody {
                @for figure in running::figures(evaluation) {
                    tr {
                        th scope="row" { (escape(&figure.what)) }
                        td class="num" { (escape(&figure.before)) }
                        td class="num" { (escape(&figure.after)) }
                        td class="how" { (escape(&figure.how)) }
                    }
                    "\n"
                }
            }
        }
    };
    html! {
        section aria-labelledby="quality" {
            h2 id="quality" { "Quality, speed and memory" }
            (scrolling("quality", &table))
            @if let Some(words) = &evaluation.input_difference { p { "Note: " (escape(words)) "." } }
            @if let Some(found) = &evaluation.continuation { (continued(found)) }
        }
    }
}

/// Returns a prompt and the texts that models generate from it.
fn continued(found: &ContinuationFigures) -> Markup {
    let texts = found.before.iter().map(|text| ("before", text)).chain([("after", &found.after)]);
    html! {
        p { "Generated after " q { (escape(&found.prompt)) } " with the most likely tokens:" }
        dl class="continued" {
            @for (name, text) in texts { dt { (name) } dd { (escape(text)) } }
        }
    }
}
