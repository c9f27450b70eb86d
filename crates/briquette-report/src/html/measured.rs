//! Each figure with how it was measured.

use super::escape::escape;
use crate::{Footprint, Report, numbers};
use std::fmt::Write;

/// Returns the tables of figures.
pub(super) fn section(report: &Report) -> String {
    format!(
        "<section aria-labelledby=\"measured\">\n<h2 id=\"measured\">Bytes, measured</h2>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"measured\">\n<table class=\"figures\">\n\
         <thead><tr><th scope=\"col\">Figure</th><th scope=\"col\">Before</th><th scope=\"col\">After</th>\
         <th scope=\"col\">How it was measured</th></tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n\
         <h3>The run</h3>\n<table class=\"run\">\n<tbody>\n{}</tbody>\n</table>\n</section>\n",
        sizes(report),
        run(report),
    )
}

/// A figure, before, after, and how it was measured.
type MeasuredRow = (&'static str, String, String, &'static str);

fn sizes(report: &Report) -> String {
    let rows = [in_bytes(report), by_element(report)].concat();
    rows.iter().fold(String::new(), |mut out, (figure, before, after, how)| {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{figure}</th><td class=\"num\">{before}</td><td class=\"num\">{after}</td><td class=\"how\">{how}</td></tr>"
        );
        out
    })
}

fn in_bytes(report: &Report) -> Vec<MeasuredRow> {
    let (before, after, count) = (&report.before, &report.after, numbers::count);
    let (predicted, bound) = numbers::predicted(report);
    vec![
        (
            "Bytes on disk",
            count(before.file_bytes),
            count(after.file_bytes),
            "sizes of the weight files, as the file system reports them",
        ),
        (
            "Predicted bytes on disk",
            String::new(),
            format!("<small>{bound}</small> {}", count(predicted)),
            "from the plan, before the run",
        ),
        (
            "Bytes of tensors",
            count(before.tensor_bytes),
            count(after.tensor_bytes),
            "without file headers: their size in memory as stored",
        ),
    ]
}

fn by_element(report: &Report) -> Vec<MeasuredRow> {
    let (before, after, count) = (&report.before, &report.after, numbers::count);
    let zeros = |of: &Footprint| match of.n_zeros {
        Some(n) => format!("{} <small>{}</small>", count(n), numbers::percent(numbers::share(n, of.n_elements))),
        None => "<small>not counted</small>".into(),
    };
    let bits = |of: &Footprint| numbers::bits_per_weight(of.tensor_bytes, of.n_elements);
    vec![
        ("Bits per weight", bits(before), bits(after), "bits of all tensors over elements, with scales and masks"),
        ("Elements", count(before.n_elements), count(after.n_elements), "from the shapes"),
        ("Zeros", zeros(before), zeros(after), "elements equal to zero, in the values read back and decoded"),
    ]
}

fn run(report: &Report) -> String {
    let mut out = String::new();
    let peak = report.peak_bytes.map_or("not measured".into(), numbers::bytes);
    let meter = if report.peak_meter.is_empty() { String::new() } else { format!(", {}", escape(&report.peak_meter)) };
    let mut line = |what: &str, mark: String, value: String, how: &str| {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{what}</th><td class=\"time\">{mark}</td><td class=\"num\">{value}</td><td class=\"how\">{how}</td></tr>"
        );
    };
    let longest = report.seconds.iter().map(|(_, seconds)| *seconds).filter(|s| s.is_finite()).fold(0.0, f64::max);
    for (phase, seconds) in &report.seconds {
        let width = if longest > 0.0 && seconds.is_finite() { 100.0 * seconds.max(0.0) / longest } else { 0.0 };
        let bar = format!(
            "<svg height=\"8\" aria-hidden=\"true\"><rect class=\"after\" height=\"8\" width=\"{width:.1}%\"/></svg>"
        );
        line(&escape(phase), bar, numbers::seconds(*seconds), "");
    }
    let how = match report.trained.is_empty() {
        true => "wall clock of the whole run, up to writing this report",
        false => "wall clock of the whole run, up to writing this report, with training steps before a kill",
    };
    line("Total", String::new(), numbers::seconds(report.total_seconds), how);
    line("Threads", String::new(), report.threads.to_string(), "worker threads");
    line("Peak memory", String::new(), peak, &format!("peak memory of this process{meter}"));
    out
}
