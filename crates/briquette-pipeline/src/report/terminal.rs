//! The report as a summary for a terminal.

mod columns;
mod paint;

use super::first::first_by;
use super::width::{self, fit};
use super::{Report, TensorReport, metrics, numbers, running};
use crate::report::columns::{Align, wrap, wrap_hanging};
use columns::TextColumns;
use paint::Paint;
use std::fmt::Write;

/// Number of tensors that are listed.
const N_TENSORS: usize = 12;
/// Least width of the layout.
const MIN_WIDTH: usize = 40;

/// Returns a summary of at most `width` columns (at least 40), optionally with colours.
pub fn to_terminal(report: &Report, width: usize, color: bool) -> String {
    let width = width.max(MIN_WIDTH);
    let paint = Paint { color };
    let sections = [
        headline(report, width, paint),
        running(report, width, paint),
        sizes(report, width, paint),
        remarks(report, width, paint),
        notes(report, width, paint),
        tensors(report, width, paint),
        run(report, width, paint),
        next(report, width, paint),
    ];
    let shown: Vec<String> = sections.into_iter().filter(|section| !section.is_empty()).collect();
    shown.join("\n")
}

fn headline(report: &Report, width: usize, paint: Paint) -> String {
    let (before, after) = (report.before.file_bytes, report.after.file_bytes);
    let name = numbers::printable(numbers::last_part(&report.model));
    let sizes = format!("{} → {}", numbers::bytes(before), numbers::bytes(after));
    let verdict = match (before, after) {
        (0, _) | (_, 0) => String::new(),
        (before, after) if after < before => format!("  {} smaller", numbers::ratio(before, after)),
        _ => "  not smaller".into(),
    };
    let name = fit(&name, width.saturating_sub(width::width(&sizes) + width::width(&verdict) + 2));
    let gap = if name.is_empty() { "" } else { "  " };
    let mut out = format!("{}{gap}{sizes}{}\n", paint.bold(&name), paint.strong(&verdict));
    for line in quality(report).iter().flat_map(|text| wrap(text, width - 2)) {
        let _ = writeln!(out, "  {}", paint.strong(&line));
    }
    for stage in &report.stages {
        let _ = writeln!(out, "  {}", paint.dim(&fit(&numbers::printable(stage), width - 2)));
    }
    out
}

/// Returns the metrics of the headline, if the model was evaluated.
fn quality(report: &Report) -> Option<String> {
    let words = metrics::in_words(&report.evaluation.as_ref()?.metrics);
    Some(numbers::printable(&words)).filter(|words| !words.is_empty())
}

fn sizes(report: &Report, width: usize, paint: Paint) -> String {
    let (before, after) = (&report.before, &report.after);
    let zeros = |n: Option<u64>, of: u64| n.map_or(numbers::NONE.into(), |n| numbers::percent(numbers::share(n, of)));
    let bits = |of: &super::Footprint| numbers::bits_per_weight(of.tensor_bytes, of.n_elements);
    let mut table =
        TextColumns::new(&["", "before", "after", "ratio"], &[Align::Left, Align::Right, Align::Right, Align::Right]);
    let mut bytes = |what: &str, before: u64, after: u64| {
        table.push([what.into(), numbers::bytes(before), numbers::bytes(after), numbers::ratio(before, after)].into());
    };
    bytes("weight files on disk", before.file_bytes, after.file_bytes);
    bytes("tensors, as stored", before.tensor_bytes, after.tensor_bytes);
    table.push(["bits per weight".into(), bits(before), bits(after), String::new()].into());
    let shares = [zeros(before.n_zeros, before.n_elements), zeros(after.n_zeros, after.n_elements)];
    let [before_zeros, after_zeros] = shares;
    table.push(["zeros".into(), before_zeros, after_zeros, String::new()].into());
    let mut out = table.to_text(width, paint);
    let text = numbers::prediction(report);
    for line in wrap(&text, width) {
        let line = if numbers::prediction_holds(report) { paint.dim(&line) } else { paint.warn(&line) };
        let _ = writeln!(out, "{line}");
    }
    out
}

fn remarks(report: &Report, width: usize, paint: Paint) -> String {
    let mut out = String::new();
    for remark in &report.remarks {
        for (place, line) in wrap(&numbers::printable(remark), width - 2).iter().enumerate() {
            let lead = if place == 0 { "! " } else { "  " };
            let _ = writeln!(out, "{}", paint.warn(&format!("{lead}{line}")));
        }
    }
    out
}

/// Notes are not warnings, so they have no mark and no colour.
fn notes(report: &Report, width: usize, paint: Paint) -> String {
    let lines = report.notes.iter().flat_map(|note| wrap(&numbers::printable(note), width));
    lines.fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "{}", paint.dim(&line));
        out
    })
}

/// Returns the results of the evaluation.
fn running(report: &Report, width: usize, paint: Paint) -> String {
    let Some(evaluation) = &report.evaluation else { return String::new() };
    let aligns = [Align::Left, Align::Right, Align::Right];
    let mut table = TextColumns::new(&["evaluation", "before", "after"], &aligns);
    for figure in running::figures(evaluation) {
        table.push([figure.what, figure.before, figure.after].into());
    }
    table.to_text(width, paint)
}

/// Returns the worst tensors if any has an error, otherwise the largest.
fn tensors(report: &Report, width: usize, paint: Paint) -> String {
    let db = |tensor: &TensorReport| tensor.error.and_then(|error| error.sqnr_db);
    let all = &report.tensors;
    let by_error = |a: usize, b: usize| db(&all[a]).unwrap_or(0.0).total_cmp(&db(&all[b]).unwrap_or(0.0));
    let mut shown = first_by((0..all.len()).filter(|&place| db(&all[place]).is_some()), N_TENSORS, by_error);
    let is_worst = !shown.is_empty();
    if !is_worst {
        shown = first_by(0..all.len(), N_TENSORS, |a, b| all[b].before_bytes.cmp(&all[a].before_bytes));
    }
    if shown.is_empty() {
        return String::new();
    }
    let headings = [
        if is_worst { "worst tensors" } else { "largest tensors" },
        "stored as",
        "before",
        "after",
        "zeros",
        "SQNR dB",
    ];
    let aligns = [Align::Name, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right];
    let mut table = TextColumns::new(&headings, &aligns);
    for tensor in shown.iter().map(|&place| &all[place]) {
        table.push(
            [
                numbers::printable(&tensor.name),
                numbers::printable(&tensor.encoding),
                if tensor.is_new { numbers::NONE.into() } else { numbers::bytes(tensor.before_bytes) },
                numbers::bytes(tensor.after_bytes),
                numbers::percent(tensor.sparsity),
                db(tensor).map_or(numbers::NONE.into(), |db| numbers::decimal(db, 1)),
            ]
            .into(),
        );
    }
    let mut out = table.to_text(width, paint);
    let n_more = report.tensors.len() - shown.len();
    if n_more > 0 {
        let _ = writeln!(out, "{}", paint.dim(&format!("… and {n_more} more, see report.html")));
    }
    out
}

fn run(report: &Report, width: usize, paint: Paint) -> String {
    let phases: Vec<String> = report
        .seconds
        .iter()
        .map(|(phase, seconds)| format!("{} {}", numbers::printable(phase), numbers::seconds(*seconds)))
        .collect();
    let threads = if report.threads == 1 { "1 thread".into() } else { format!("{} threads", report.threads) };
    let phases = if phases.is_empty() { phases.concat() } else { format!(": {}", phases.join(", ")) };
    let peak = report.peak_bytes.map_or("not measured".into(), numbers::bytes);
    let meter = if report.peak_meter.is_empty() { String::new() } else { format!(" ({})", report.peak_meter) };
    let lines = [
        format!("time         {} with {threads}{phases}", numbers::seconds(report.total_seconds)),
        format!("peak memory  {peak}{}", numbers::printable(&meter)),
    ];
    let mut out = String::new();
    for line in lines.iter().flat_map(|line| wrap_hanging(line, width, 13)) {
        let _ = writeln!(out, "{}", paint.dim(&line));
    }
    out
}

/// Returns the next commands. A path is wrapped instead of cut, so that it can be copied.
fn next(report: &Report, width: usize, paint: Paint) -> String {
    let output = numbers::printable(&report.output);
    if output.is_empty() {
        return String::new();
    }
    let quoted = if output.contains(|c: char| !(c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c))) {
        format!("'{}'", output.replace('\'', "'\\''"))
    } else {
        output.clone()
    };
    let page = format!("{}/report.html", output.trim_end_matches('/'));
    let lines = [("written to", output), ("plots in", page), ("check with", format!("briquette verify {quoted}"))];
    let mut out = String::new();
    for (what, text) in lines {
        for (place, line) in wrap_hanging(&format!("{what:<11}  {text}"), width, 13).iter().enumerate() {
            let _ = match line.split_at_checked(13) {
                Some((lead, rest)) if place == 0 => writeln!(out, "{}{rest}", paint.dim(lead)),
                _ => writeln!(out, "{line}"),
            };
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn wide() -> Report {
        let mut report = sample::of_layers(40);
        report.tensors[0].name = "a_name_without_an_end_".repeat(20).into();
        report.tensors[1].name = "層.重み.".repeat(30).into();
        report.tensors[2].encoding = format!("tied to {}", "x".repeat(300));
        report.output = format!("/a/{}", "folder/".repeat(40));
        report.model = "m".repeat(300);
        report.stages.push("prune ".repeat(60));
        report.remarks.push("y".repeat(500));
        report
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for report in [sample::empty(), sample::of_layers(2), wide()] {
            for width in [40, 60, 80, 100, 120] {
                for line in to_terminal(&report, width, false).lines() {
                    assert!(width::width(line) <= width, "{} > {width}: {line}", width::width(line));
                }
            }
        }
    }

    #[test]
    fn only_own_colours_are_printed_and_only_if_enabled() {
        let mut report = wide();
        report.tensors[0].name = "\x1b[31mred".into();
        report.remarks.push("\x1b]0;title\x07".into());
        report.output = "out/\x1b[2J".into();
        report.peak_meter = "\x1b[5m".into();
        assert!(!to_terminal(&report, 80, false).contains('\x1b'));
        let colored = to_terminal(&report, 80, true);
        assert!(colored.contains("\x1b[1m") && !colored.contains("\x1b[31mred") && !colored.contains("\x1b]"));
    }

    #[test]
    fn quality_is_in_the_first_lines_and_a_note_is_not_a_warning() {
        let text = to_terminal(&sample::of_layers(2), 100, true);
        assert!(text.lines().nth(1).unwrap().contains("cosine 0.9995"), "{text}");
        let line = |words: &str| text.lines().find(|line| line.contains(words)).unwrap();
        assert!(line("Pruned without").contains("\x1b[33m! "), "{text}");
        assert!(line("Calibrated on").starts_with("\x1b[2mCalibrated"), "{text}");
    }

    #[test]
    fn missing_figures_are_not_nan() {
        let mut broken = sample::of_layers(1);
        broken.tensors[0].sparsity = f64::NAN;
        broken.total_seconds = f64::NAN;
        broken.tensors[1].error =
            Some(crate::report::ErrorReport { sqnr_db: Some(f64::INFINITY), cosine: None, relative: 0.0 });
        for report in [sample::empty(), broken] {
            let text = to_terminal(&report, 80, false);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn a_large_model_is_truncated_with_a_hint() {
        let report = sample::of_layers(40);
        let text = to_terminal(&report, 100, false);
        assert!(text.contains("… and 108 more, see report.html"), "{text}");
        assert!(text.contains("briquette verify out/small") && text.contains("predicted at most"));
        assert!(text.lines().count() < 50);
    }
}
