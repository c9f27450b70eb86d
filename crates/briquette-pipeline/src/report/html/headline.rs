//! The headline of a page: size, quality, prediction and warnings.

use super::escape::{escape, name};
use crate::report::{Report, metrics, numbers};
use maud::{Markup, html};

/// Returns the top of the page.
pub(super) fn section(report: &Report) -> Markup {
    let (before, after) = (report.before.file_bytes, report.after.file_bytes);
    html! {
        header {
            p class="kicker" { (escape(&name_of(report))) }
            h1 { span { (numbers::bytes(before)) " " span class="arrow" { "→" } " " (numbers::bytes(after)) } }
            p class="verdict" { (verdict(before, after)) (quality(report)) }
            (prediction(report))
            @if !report.stages.is_empty() {
                ul class="stages" { @for stage in &report.stages { li { (escape(stage)) } } }
            }
            p class="fine" {
                (name(&report.model)) " (" (escape(&report.model_format)) ") → "
                (name(&report.output)) " (" (escape(&report.format)) ")"
            }
        }
        "\n"
        (remarks(report))
        (notes(report))
    }
}

/// Returns the model's name without its directories.
pub(super) fn name_of(report: &Report) -> String {
    let name = numbers::last_part(&report.model);
    if name.is_empty() { "a model".into() } else { name.into() }
}

fn verdict(before: u64, after: u64) -> Markup {
    let share = |part: u64| numbers::percent(numbers::share(part, before));
    html! {
        @if after == 0 || before == 0 {
            "No bytes to compare."
        } @else if after == before {
            "No smaller than before."
        } @else if after > before {
            (share(after - before)) " larger than before."
        } @else {
            b { (numbers::ratio(before, after).trim_end_matches('x')) "×" }
            " smaller: " (share(after)) " of the bytes."
        }
    }
}

/// Returns the metrics of the headline, if the model was evaluated.
fn quality(report: &Report) -> Markup {
    let words = report.evaluation.as_ref().map(|found| metrics::in_words(&found.metrics)).unwrap_or_default();
    html! {
        @if !words.is_empty() { " " span class="quality" { (escape(&words)) "." } }
    }
}

fn prediction(report: &Report) -> Markup {
    let (class, mark) = if numbers::prediction_holds(report) { ("holds", "✓") } else { ("fails", "✗") };
    html! {
        p class={ "prediction " (class) } {
            span aria-hidden="true" { (mark) } " Weight files: " (numbers::prediction(report)) "."
        }
    }
}

fn remarks(report: &Report) -> Markup {
    html! {
        @if !report.remarks.is_empty() {
            aside class="remarks" aria-label="Remarks" { ul { (items(&report.remarks)) } }
        }
    }
}

/// Notes are not warnings and are less prominent.
fn notes(report: &Report) -> Markup {
    html! {
        @if !report.notes.is_empty() {
            ul class="fine notes" aria-label="Notes" { (items(&report.notes)) }
        }
    }
}

fn items(texts: &[String]) -> Markup {
    html! {
        @for text in texts { li { (escape(text)) } "\n" }
    }
}
