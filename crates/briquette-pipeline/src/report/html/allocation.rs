//! The allocation of a budget: bits of each tensor, the most sensitive first.

use super::axis::PlotAxis;
use super::escape::{escape, name};
use super::family::MAX_ROWS;
use super::rows::{FigureRow, RowFigure};
use crate::report::{AllocatedTensor, Report, numbers};
use maud::{Markup, html};

/// Returns the figure; empty without a budget.
pub(super) fn section(report: &Report) -> Markup {
    let Some(found) = &report.allocation else { return Markup::default() };
    let mut tensors: Vec<&AllocatedTensor> = found.tensors.iter().collect();
    // Sorts by sensitivity per weight.
    let worth = |tensor: &AllocatedTensor| tensor.sensitivity / tensor.n_weights.max(1) as f64;
    tensors.sort_by(|a, b| worth(b).total_cmp(&worth(a)).then(a.name.cmp(&b.name)));
    let total: f64 = tensors.iter().map(|tensor| tensor.loss).sum();
    let axis = PlotAxis::holding(0.0, tensors.iter().map(|tensor| tensor.bits()).fold(1.0, f64::max));
    let n_hidden = tensors.len().saturating_sub(MAX_ROWS);
    RowFigure {
        id: "allocation",
        title: "Where the bytes went",
        lead: html! {
            "The budget chose step sizes for " (escape(&found.target)) ", by sensitivity (" (escape(&found.how)) ", in "
            (escape(&found.unit)) "). The most sensitive weights come first and have finer steps. \
             The predicted loss of all tensors is " (format_args!("{total:.2e}")) "."
        },
        axis: axis.labels(|tick| format!("{tick:.0} bits"), |_| String::new()),
        rows: tensors.iter().take(MAX_ROWS).map(|tensor| row(tensor, total, &axis)).collect(),
        foot: html! {
            @if n_hidden > 0 { (n_hidden) " less sensitive tensors are not drawn; " code { "report.json" } " has all." }
        },
    }
    .to_html()
}

fn row(tensor: &AllocatedTensor, total: f64, axis: &PlotAxis) -> FigureRow {
    let width = axis.place(tensor.bits());
    let share = numbers::percent(if total > 0.0 { tensor.loss / total } else { 0.0 });
    FigureRow {
        label: name(&tensor.name),
        note: tensor.scheme.clone(),
        marks: html! {
            (axis.grid())
            rect class="after" y="6" height="8" width=(format_args!("{width:.2}%")) {}
        },
        value: html! { (numbers::decimal(tensor.bits(), 2)) " bits " small { (share) " of the loss" } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{AllocationReport, sample};

    #[test]
    fn the_most_sensitive_tensor_is_first_and_names_are_escaped() {
        let mut report = sample::empty();
        assert_eq!(section(&report).0, "");
        let tensor = |name: &str, bytes: f64, loss: f64, sensitivity: f64| AllocatedTensor {
            name: name.into(),
            scheme: "step0.01".into(),
            n_weights: 1000,
            bytes,
            loss,
            sensitivity,
        };
        report.allocation = Some(AllocationReport {
            most_bytes: None,
            is_finest: false,
            target: "at most 9 bytes of weight files".into(),
            how: "gradient".into(),
            unit: "nats".into(),
            tensors: vec![tensor("b<b>", 250.0, 3e-3, 1e-4), tensor("a", 500.0, 1e-3, 1e-1)],
        });
        let page = section(&report).0;
        let (first, second) = (page.find("4.00 bits").unwrap(), page.find("2.00 bits").unwrap());
        assert!(
            first < second && page.contains("4.00e-3") && !page.contains("<b>b") && !page.contains("b<b>"),
            "{page}"
        );
    }
}
