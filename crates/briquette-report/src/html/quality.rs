//! Quality, latency and memory of the evaluation, before and after.

use super::escape::escape;
use crate::figures::ContinuationFigures;
use crate::{Report, running};
use std::fmt::Write;

/// Returns the table of figures; empty without an evaluation.
pub(super) fn section(report: &Report) -> String {
    let Some(evaluation) = &report.evaluation else { return String::new() };
    let rows = running::figures(evaluation).into_iter().fold(String::new(), |mut out, figure| {
        let [what, before, after, how] =
            [figure.what, figure.before, figure.after, figure.how].map(|text| escape(&text).to_string());
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{what}</th><td class=\"num\">{before}</td><td class=\"num\">{after}</td><td class=\"how\">{how}</td></tr>"
        );
        out
    });
    format!(
        "<section aria-labelledby=\"quality\">\n<h2 id=\"quality\">Quality, speed and memory</h2>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"quality\">\n<table class=\"figures\">\n\
         <thead><tr><th scope=\"col\">Figure</th><th scope=\"col\">Before</th><th scope=\"col\">After</th>\
         <th scope=\"col\">How it was measured</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n{continued}</section>\n",
        continued = evaluation.continuation.as_ref().map_or_else(String::new, continued)
    )
}

/// Returns a prompt and the texts that models generate from it.
fn continued(found: &ContinuationFigures) -> String {
    let texts = found.before.iter().map(|text| ("before", text)).chain([("after", &found.after)]);
    let rows = texts.fold(String::new(), |mut out, (name, text)| {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escape(text));
        out
    });
    format!(
        "<p>Generated after <q>{}</q> with the most likely tokens:</p>\n<dl class=\"continued\">\n{rows}</dl>\n",
        escape(&found.prompt)
    )
}
