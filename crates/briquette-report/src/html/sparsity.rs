//! Sparsity by tensor.

use super::axis::PlotAxis;
use super::escape::name;
use super::family::{MAX_ROWS, TensorFamily, families};
use super::rows::{self, FigureRow, RowFigure};
use crate::{Report, TensorReport, numbers};
use std::fmt::Write;

/// Returns the figure, or a sentence if there are no zeros.
pub(super) fn section(report: &Report) -> String {
    let mut families = families(&report.tensors);
    families.retain_mut(|family| {
        family.members.retain(|tensor| sparsity(tensor) > 0.0);
        !family.members.is_empty()
    });
    families.sort_by(|a, b| n_zeros(b).total_cmp(&n_zeros(a)));
    if families.is_empty() {
        return "<section aria-labelledby=\"sparsity\"><h2 id=\"sparsity\">Sparsity by tensor</h2>\n\
                <p>No tensor has zeros.</p></section>\n"
            .into();
    }
    let n_shown: usize = families.iter().map(|family| family.members.len()).sum();
    let n_without = report.tensors.len() - n_shown;
    let n_hidden = families.len().saturating_sub(MAX_ROWS);
    families.truncate(MAX_ROWS);
    let mut foot = String::new();
    if n_without > 0 {
        let _ = write!(foot, "{n_without} tensors without zeros or without weights are not shown. ");
    }
    if n_hidden > 0 {
        let _ = write!(foot, "{n_hidden} rows with fewer zeros are not drawn.");
    }
    let axis = PlotAxis::of_shares();
    RowFigure {
        id: "sparsity",
        title: "Sparsity by tensor",
        lead: lead_of(report),
        axis: axis.labels(|tick| format!("{:.0} %", 100.0 * tick), |_| String::new()),
        rows: families.iter().map(|family| row(family, &axis)).collect(),
        foot,
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

fn lead_of(report: &Report) -> String {
    let total = report.after.n_zeros.map_or(String::new(), |n| {
        format!("<b>{}</b> of all elements are zero. ", numbers::percent(numbers::share(n, report.after.n_elements)))
    });
    format!(
        "{total}The bar is the share of zeros in the values read back from the output. \
         Pruned weights, weights rounded to zero and original zeros all count. Most zeros first."
    )
}

fn row(family: &TensorFamily, axis: &PlotAxis) -> FigureRow {
    let n: f64 = family.members.iter().map(|tensor| n_elements(tensor)).sum();
    let mean = if n > 0.0 { n_zeros(family) / n } else { 0.0 };
    let mut marks = axis.grid();
    let _ = write!(marks, "<rect class=\"zeros\" y=\"4\" height=\"12\" width=\"{:.2}%\"/>", axis.place(mean));
    if family.members.len() > 1 {
        for x in rows::marks(family.members.iter().map(|tensor| axis.place(sparsity(tensor)))) {
            let _ = write!(marks, "<line class=\"notch\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"2\" y2=\"18\"/>");
        }
    }
    FigureRow { label: name(&family.label), note: family.note(), marks, value: numbers::percent(mean) }
}
