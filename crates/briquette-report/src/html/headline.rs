//! The headline of a page: size, quality, prediction and warnings.

use super::escape::{escape, name};
use crate::{Report, metrics, numbers};

/// Returns the top of the page.
pub(super) fn section(report: &Report) -> String {
    let (before, after) = (report.before.file_bytes, report.after.file_bytes);
    let stages: String = report.stages.iter().map(|stage| format!("<li>{}</li>", escape(stage))).collect();
    let stages = if stages.is_empty() { stages } else { format!("<ul class=\"stages\">{stages}</ul>\n") };
    format!(
        "<header>\n<p class=\"kicker\">{model}</p>\n<h1><span>{before_text} <span class=\"arrow\">→</span> {after_text}</span></h1>\n\
         <p class=\"verdict\">{verdict}{quality}</p>\n{prediction}{stages}<p class=\"fine\">{from} ({from_format}) → {to} ({to_format})</p>\n\
         </header>\n{remarks}{notes}",
        model = escape(&name_of(report)),
        before_text = numbers::bytes(before),
        after_text = numbers::bytes(after),
        verdict = verdict(before, after),
        quality = quality(report),
        prediction = prediction(report),
        from = name(&report.model),
        from_format = escape(&report.model_format),
        to = name(&report.output),
        to_format = escape(&report.format),
        remarks = remarks(report),
        notes = notes(report),
    )
}

/// Returns the model's name without its directories.
pub(super) fn name_of(report: &Report) -> String {
    let name = numbers::last_part(&report.model);
    if name.is_empty() { "a model".into() } else { name.into() }
}

fn verdict(before: u64, after: u64) -> String {
    if after == 0 || before == 0 {
        return "No bytes to compare.".into();
    }
    if after >= before {
        let share = numbers::percent(numbers::share(after - before, before));
        return if after == before { "No smaller than before.".into() } else { format!("{share} larger than before.") };
    }
    let share = numbers::percent(numbers::share(after, before));
    format!("<b>{}×</b> smaller: {share} of the bytes.", numbers::ratio(before, after).trim_end_matches('x'))
}

/// Returns the metrics of the headline, if the model was evaluated.
fn quality(report: &Report) -> String {
    let words = report.evaluation.as_ref().map(|found| metrics::in_words(&found.metrics)).unwrap_or_default();
    if words.is_empty() { words } else { format!(" <span class=\"quality\">{}.</span>", escape(&words)) }
}

fn prediction(report: &Report) -> String {
    let (class, mark) = if numbers::prediction_holds(report) { ("holds", "✓") } else { ("fails", "✗") };
    let text = numbers::prediction(report);
    format!("<p class=\"prediction {class}\"><span aria-hidden=\"true\">{mark}</span> Weight files: {text}.</p>\n")
}

fn remarks(report: &Report) -> String {
    if report.remarks.is_empty() {
        return String::new();
    }
    let items: String = report.remarks.iter().map(|remark| format!("<li>{}</li>\n", escape(remark))).collect();
    format!("<aside class=\"remarks\" aria-label=\"Remarks\"><ul>\n{items}</ul></aside>\n")
}

/// Notes are not warnings and are less prominent.
fn notes(report: &Report) -> String {
    if report.notes.is_empty() {
        return String::new();
    }
    let items: String = report.notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<ul class=\"fine notes\" aria-label=\"Notes\">\n{items}</ul>\n")
}
