//! The table of tensors: all, or the largest and the worst of very many.

use super::escape::{escape, name};
use crate::first::first_by;
use crate::numbers::shape_text;
use crate::{Report, TensorReport, numbers};
use std::collections::BTreeSet;
use std::fmt::Write;

const HEADINGS: [(&str, bool); 12] = [
    ("Tensor", false),
    ("Role", false),
    ("Type", false),
    ("Shape", true),
    ("Stored as, and why", false),
    ("Bytes before", true),
    ("Bytes after", true),
    ("Bits per weight", true),
    ("Sparsity", true),
    ("SQNR dB", true),
    ("Cosine", true),
    (OUTPUTS, true),
];

/// The heading of output errors, for tensors with input statistics only.
const OUTPUTS: &str = "Output error";

/// Up to this number of tensors, all are shown.
const MAX_ALL: usize = 1000;
/// Number of the largest and of the worst tensors that are shown of a larger model.
const N_LARGEST: usize = 300;
const N_WORST: usize = 300;

/// Returns the table of tensors, and the number of omitted ones.
pub(super) fn section(report: &Report) -> String {
    let saw_inputs = report.tensors.iter().any(|tensor| tensor.output_error.is_some());
    let headings = HEADINGS.iter().filter(|(heading, _)| saw_inputs || *heading != OUTPUTS);
    let headings: String = headings.fold(String::new(), |mut out, (heading, is_number)| {
        let class = if *is_number { " class=\"num\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{heading}</th>");
        out
    });
    let n = report.tensors.len();
    let shown = shown(&report.tensors);
    let rows: String = shown.iter().copied().map(|tensor| row(tensor, saw_inputs)).collect();
    let (title, lead) = if shown.len() == n {
        (format!("All {n} tensors"), String::new())
    } else {
        let (n, left) = (numbers::count(n as u64), numbers::count((n - shown.len()) as u64));
        let title = format!("The largest and the worst of {n} tensors");
        (title, format!("<p>The other {left} are in <code>report.json</code>.</p>\n"))
    };
    format!(
        "<section aria-labelledby=\"all\">\n<h2 id=\"all\">{title}</h2>\n{lead}{gone}\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"all\">\n<table class=\"tensors\">\n\
         <thead><tr>{headings}</tr></thead>\n<tbody id=\"tensors\">\n{rows}</tbody>\n</table></div>\n</section>\n",
        gone = gone(report),
    )
}

/// Returns a sentence about tensors of the original that the output lacks.
fn gone(report: &Report) -> String {
    if report.gone.is_empty() {
        return String::new();
    }
    let bytes = report.gone.iter().map(|tensor| tensor.bytes).sum();
    format!(
        "<p>{} tensors of the original are not in the output, by name and shape: {} (report.json lists them).</p>\n",
        report.gone.len(),
        numbers::bytes(bytes)
    )
}

/// Returns all tensors, or the largest and those with the largest error, in the order of the model.
fn shown(tensors: &[TensorReport]) -> Vec<&TensorReport> {
    if tensors.len() <= MAX_ALL {
        return tensors.iter().collect();
    }
    let by_bytes = |a: usize, b: usize| tensors[b].before_bytes.cmp(&tensors[a].before_bytes);
    let largest = first_by(0..tensors.len(), N_LARGEST, by_bytes);
    let decibels = |index: usize| tensors[index].error.and_then(|error| error.sqnr_db).unwrap_or(f64::INFINITY);
    let with_error = (0..tensors.len()).filter(|&index| decibels(index) < f64::INFINITY);
    let worst = first_by(with_error, N_WORST, |a, b| decibels(a).total_cmp(&decibels(b)));
    let both: BTreeSet<usize> = largest.into_iter().chain(worst).collect();
    both.into_iter().map(|index| &tensors[index]).collect()
}

fn row(tensor: &TensorReport, saw_inputs: bool) -> String {
    let error = tensor.error;
    let n_elements: f64 = tensor.shape.iter().map(|extent| *extent as f64).product();
    let numbers = [
        cell(n_elements, shape_text(&tensor.shape)),
        kept_as(tensor),
        cell(
            tensor.before_bytes as f64,
            if tensor.is_new { "new".into() } else { numbers::count(tensor.before_bytes) },
        ),
        cell(tensor.after_bytes as f64, numbers::count(tensor.after_bytes)),
        cell(tensor.bits_per_weight, numbers::decimal(tensor.bits_per_weight, 2)),
        cell(tensor.sparsity, numbers::percent(tensor.sparsity)),
        optional(error.map(|error| error.sqnr_db), 2, "equal"),
        optional(error.map(|error| error.cosine), 6, numbers::NONE),
    ];
    format!(
        "<tr><th scope=\"row\">{}</th>{}{}{}{}</tr>\n",
        name(&tensor.name),
        text(tensor.role.name()),
        text(&tensor.dtype),
        numbers.concat(),
        if saw_inputs { outputs(tensor) } else { String::new() }
    )
}

/// Returns the error of a layer's outputs; with an update of weights, the error with and without it.
fn outputs(tensor: &TensorReport) -> String {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let moved = tensor.solved.as_ref().and_then(|solved| solved.outputs_unmoved.zip(solved.outputs));
    match (moved, tensor.output_error) {
        (Some((unmoved, moved)), _) => {
            let text = format!("{}<small>{} without update</small>", percent(moved), percent(unmoved));
            format!("<td class=\"num\" data-v=\"{moved}\">{text}</td>")
        }
        (None, Some(error)) => cell(error, percent(error)),
        (None, None) => "<td class=\"num\"></td>".into(),
    }
}

fn text(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

fn kept_as(tensor: &TensorReport) -> String {
    let why = if tensor.why.is_empty() { String::new() } else { format!("<small>{}</small>", escape(&tensor.why)) };
    format!("<td>{}{why}</td>", name(&tensor.encoding))
}

/// Returns a cell with a number and its sort key.
fn cell(value: f64, text: String) -> String {
    if value.is_finite() {
        format!("<td class=\"num\" data-v=\"{value}\">{text}</td>")
    } else {
        format!("<td class=\"num\">{}</td>", numbers::NONE)
    }
}

/// Returns a figure of a changed tensor; `absent` if it has none.
fn optional(value: Option<Option<f64>>, n_digits: usize, absent: &str) -> String {
    match value {
        Some(Some(value)) => cell(value, numbers::decimal(value, n_digits)),
        Some(None) => format!("<td class=\"num\">{absent}</td>"),
        None => "<td class=\"num\"></td>".into(),
    }
}
