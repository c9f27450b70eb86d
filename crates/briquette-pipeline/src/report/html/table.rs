//! The table of tensors: all, or the largest and the worst of very many.

use super::escape::{escape, name};
use super::frame::scrolling;
use crate::report::first::first_by;
use crate::report::numbers::shape_text;
use crate::report::{Report, TensorReport, numbers};
use maud::{Markup, Render, html};
use std::collections::BTreeSet;

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
pub(super) fn section(report: &Report) -> Markup {
    let saw_inputs = report.tensors.iter().any(|tensor| tensor.output_error.is_some());
    let headings = HEADINGS.iter().filter(|(heading, _)| saw_inputs || *heading != OUTPUTS);
    let shown = shown(&report.tensors);
    let (n, n_left) = (report.tensors.len(), report.tensors.len() - shown.len());
    let table = html! {
        table class="tensors" {
            thead {
                tr {
                    @for (heading, is_number) in headings {
                        th scope="col" class=[is_number.then_some("num")] { (heading) }
                    }
                }
            }
            "\n"
            tbody id="tensors" {
                "\n"
                @for tensor in shown { (row(tensor, saw_inputs)) "\n" }
            }
        }
    };
    html! {
        section aria-labelledby="all" {
            @if n_left == 0 {
                h2 id="all" { "All " (n) " tensors" }
            } @else {
                h2 id="all" { "The largest and the worst of " (numbers::count(n as u64)) " tensors" }
                p { "The other " (numbers::count(n_left as u64)) " are in " code { "report.json" } "." }
            }
            @if !report.gone.is_empty() { (gone(report)) }
            (scrolling("all", &table))
        }
    }
}

/// Returns a sentence about tensors of the original that the output lacks.
fn gone(report: &Report) -> Markup {
    let bytes = report.gone.iter().map(|tensor| tensor.bytes).sum();
    html! {
        p {
            (report.gone.len()) " tensors of the original are not in the output, by name and shape: "
            (numbers::bytes(bytes)) " (report.json lists them)."
        }
    }
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

fn row(tensor: &TensorReport, saw_inputs: bool) -> Markup {
    let error = tensor.error;
    let n_elements: f64 = tensor.shape.iter().map(|extent| *extent as f64).product();
    let before = if tensor.is_new { "new".into() } else { numbers::count(tensor.before_bytes) };
    html! {
        tr {
            th scope="row" { (name(&tensor.name)) }
            td { (tensor.role.name()) }
            td { (escape(&tensor.dtype)) }
            (cell(n_elements, shape_text(&tensor.shape)))
            td {
                (name(&tensor.encoding))
                @if !tensor.why.is_empty() { small { (escape(&tensor.why)) } }
            }
            (cell(tensor.before_bytes as f64, before))
            (cell(tensor.after_bytes as f64, numbers::count(tensor.after_bytes)))
            (cell(tensor.bits_per_weight, numbers::decimal(tensor.bits_per_weight, 2)))
            (cell(tensor.sparsity, numbers::percent(tensor.sparsity)))
            (optional(error.map(|error| error.sqnr_db), 2, "equal"))
            (optional(error.map(|error| error.cosine), 6, numbers::NONE))
            @if saw_inputs { (outputs(tensor)) }
        }
    }
}

/// Returns the error of a layer's outputs; with an update of weights, the error with and without it.
fn outputs(tensor: &TensorReport) -> Markup {
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let moved = tensor.solved.as_ref().and_then(|solved| solved.outputs_unmoved.zip(solved.outputs));
    html! {
        @match (moved, tensor.output_error.as_deref().copied()) {
            (Some((unmoved, moved)), _) => td class="num" data-v=(moved) {
                (percent(moved)) small { (percent(unmoved)) " without update" }
            }
            (None, Some(error)) => (cell(error, percent(error)))
            (None, None) => td class="num" {}
        }
    }
}

/// Returns a cell with a number and its sort key.
pub(super) fn cell(value: f64, text: impl Render) -> Markup {
    html! {
        @if value.is_finite() {
            td class="num" data-v=(value) { (text) }
        } @else {
            td class="num" { (numbers::NONE) }
        }
    }
}

/// Returns a figure of a changed tensor; `absent` if it has none.
fn optional(value: Option<Option<f64>>, n_digits: usize, absent: &str) -> Markup {
    html! {
        @match value {
            Some(Some(value)) => (cell(value, numbers::decimal(value, n_digits)))
            Some(None) => td class="num" { (absent) }
            None => td class="num" {}
        }
    }
}
