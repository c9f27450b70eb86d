//! Sparsity by tensor.

use super::axis::PlotAxis;
use super::escape::name;
use super::family::{MAX_ROWS, TensorFamily, families};
use super::rows::{self, FigureRow, RowFigure};
use crate::report::{Report, TensorReport, numbers};
use maud::{Markup, html};

/// Returns the figure, or a sentence if there are no zeros.
pub(super) fn section(report: &Report) -> Markup {
    let mut families = families(&report.tensors);
    families.retain_mut(|family| {
        family.members.retain(|tensor| sparsity(tensor) > 0.0);
        !family.members.is_empty()
    });
    families.sort_by(|a, b| n_zeros(b).total_cmp(&n_zeros(a)));
    if families.is_empty() {
        return html! {
            section aria-labelledby="sparsity" {
                h2 id="sparsity" { "Sparsity by tensor" }
                p { "No tensor has zeros." }
            }
        };
    }
    let n_shown: usize = families.iter().map(|family| family.members.len()).sum();
    let n_without = report.tensors.len() - n_shown;
    let n_hidden = families.len().saturating_sub(MAX_ROWS);
    families.truncate(MAX_ROWS);
    let axis = PlotAxis::of_shares();
    RowFigure {
        id: "sparsity",
        title: "Sparsity by tensor",
        lead: lead_of(report),
        axis: axis.labels(|tick| format!("{:.0} %", 100.0 * tick), |_| String::new()),
        rows: families.iter().map(|family| row(family, &axis)).collect(),
        foot: html! {
            @if n_without > 0 { (n_without) " tensors without zeros or without weights are not shown. " }
            @if n_hidden > 0 { (n_hidden) " rows with fewer zeros are not drawn." }
        },
    }
    .to_html()
}

fn sparsity(tensor: &TensorReport) -> f64 {
    if tensor.sparsity.is_finite() { tensor.sparsity.clamp(0.0, 1.0) } else { 0.0 }
}

fn n_elements(tensor: &TensorReport) -> f64 {
    tensor.shape.iter().map(|extent| *extent as f64).product()
}

fn n_zeros(family: &TensorFamily) -> f64 {
    family.members.iter().map(|tensor| sparsity(tensor) * n_elements(tensor)).sum()
}

fn lead_of(report: &Report) -> Markup {
    html! {
        @if let Some(n) = report.after.n_zeros {
            b { (numbers::percent(numbers::share(n, report.after.n_elements))) } " of all elements are zero. "
        }
        "The bar is the share of zeros in the values read back from the output. \
         Pruned weights, weights rounded to zero and original zeros all count. Most zeros first."
    }
}

fn row(family: &TensorFamily, axis: &PlotAxis) -> FigureRow {
    let n: f64 = family.members.iter().map(|tensor| n_elements(tensor)).sum();
    let mean = if n > 0.0 { n_zeros(family) / n } else { 0.0 };
    let width = axis.place(mean);
    let members = if family.members.len() > 1 { &family.members[..] } else { &[] };
    let notches = rows::marks(members.iter().map(|tensor| axis.place(sparsity(tensor))));
    FigureRow {
        label: name(&family.label),
        note: family.note(),
        marks: html! {
            (axis.grid())
            rect class="zeros" y="4" height="12" width=(format_args!("{width:.2}%")) {}
            @for x in notches {
                line class="notch" x1=(format_args!("{x:.2}%")) x2=(format_args!("{x:.2}%")) y1="2" y2="18" {}
            }
        },
        value: html! { (numbers::percent(mean)) },
    }
}
