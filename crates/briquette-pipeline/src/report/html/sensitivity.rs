//! The page of sensitivities: the predicted loss of each tensor, worst first.

use super::axis::PlotAxis;
use super::escape::{escape, name};
use super::family::MAX_ROWS;
use super::frame::{page, scrolling};
use super::rows::{FigureRow, RowFigure};
use crate::report::{SensitivityReport, TensorSensitivity, numbers};
use maud::{Markup, html};

/// Largest number of tensors in the table.
const MAX_TENSORS: usize = 1000;

/// Returns the page. Equal reports give equal bytes.
pub fn of_sensitivity(report: &SensitivityReport) -> String {
    let worst = worst_first(report);
    let sections = [headline(report), figure(report, &worst), table(report, &worst)];
    let footer = html! {
        "Written by " (escape(&report.producer)) ". The file beside this page has the same figures for programs."
    };
    page(&format!("{}, sensitivity", numbers::last_part(&report.model)), &sections, &footer)
}

/// Returns tensors by loss, largest first.
fn worst_first(report: &SensitivityReport) -> Vec<&TensorSensitivity> {
    let mut tensors: Vec<&TensorSensitivity> = report.tensors.iter().collect();
    tensors.sort_by(|a, b| b.loss.total_cmp(&a.loss).then(a.name.cmp(&b.name)));
    tensors
}

fn headline(report: &SensitivityReport) -> Markup {
    html! {
        header {
            p class="kicker" { (name(&report.model)) }
            h1 { span { "Sensitivity of " (report.tensors.len()) " tensors" } }
            @if let (Some(other), Some(rank)) = (&report.against, report.rank_correlation) {
                p class="verdict" { "Rank correlation with " (escape(other)) ": " (format_args!("{rank:.3}")) "." }
            }
            p class="fine" {
                "Method: " (escape(&report.how))
                @if let (Some(data), Some(n)) = (&report.data, report.n_samples) {
                    " on at most " (n) " items of " (name(data))
                }
                ", in " (escape(&report.unit)) "."
            }
        }
    }
}

/// Returns the base 10 logarithm of a loss, if it can be drawn.
fn place(loss: f64) -> Option<f64> {
    Some(loss.log10()).filter(|log| log.is_finite())
}

fn figure(report: &SensitivityReport, worst: &[&TensorSensitivity]) -> Markup {
    let shown = &worst[..worst.len().min(MAX_ROWS)];
    let logs = shown.iter().flat_map(|tensor| [Some(tensor.loss), tensor.against]).flatten().filter_map(place);
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
    if low > high {
        return Markup::default();
    }
    let axis = PlotAxis::holding(low.floor(), high.ceil());
    let total: f64 = report.tensors.iter().map(|tensor| tensor.loss).sum();
    let n_hidden = worst.len() - shown.len();
    RowFigure {
        id: "losses",
        title: "Loss by tensor, worst first",
        lead: html! {
            "Loss with only this tensor quantized to about four bits (a step of a quarter of its root mean square), \
             and its share of the total all."
            @if let Some(other) = &report.against { " Rings are the losses by " (escape(other)) "." }
        },
        axis: axis.labels(|tick| format!("{:.0e}", 10.0_f64.powf(tick)), |_| String::new()),
        rows: shown.iter().map(|tensor| figure_row(tensor, total, &axis)).collect(),
        foot: html! { @if n_hidden > 0 { (n_hidden) " tensors with smaller losses are not drawn." } },
    }
    .to_html()
}

fn figure_row(tensor: &TensorSensitivity, total: f64, axis: &PlotAxis) -> FigureRow {
    let dots = [(tensor.against, "also"), (Some(tensor.loss), "dot")];
    let dots = dots.into_iter().filter_map(|(loss, class)| Some((axis.place(place(loss?)?), class)));
    FigureRow {
        label: name(&tensor.name),
        note: numbers::count(tensor.n_weights as u64),
        marks: html! {
            (axis.grid())
            @for (x, class) in dots { circle class=(class) cx=(format_args!("{x:.2}%")) cy="10" r="5" {} }
        },
        value: html! {
            (format_args!("{:.2e}", tensor.loss)) " "
            small { (numbers::percent(tensor.loss / total.max(1e-300))) }
        },
    }
}

fn table(report: &SensitivityReport, worst: &[&TensorSensitivity]) -> Markup {
    let n_left = worst.len().saturating_sub(MAX_TENSORS);
    let table = html! {
        table class="tensors" {
            thead {
                tr {
                    th scope="col" { "Tensor" }
                    (heading("Weights"))
                    (heading("RMS"))
                    (heading("Loss at step RMS/4"))
                    @if let Some(how) = &report.against { (heading(&format!("By {how}"))) }
                    (heading("Loss over step²"))
                    th scope="col" {}
                }
            }
            "\n"
            tbody id="tensors" {
                "\n"
                @for tensor in worst.iter().take(MAX_TENSORS) { (row(tensor, report.against.is_some())) "\n" }
            }
        }
    };
    html! {
        section aria-labelledby="all" {
            h2 id="all" { "All tensors" }
            @if n_left > 0 { p class="fine" { (n_left) " more are in the file beside this page." } }
            (scrolling("all", &table))
        }
    }
}

fn row(tensor: &TensorSensitivity, has_other: bool) -> Markup {
    let number = |value: f64| html! { td class="num" data-v=(value) { (format_args!("{value:.3e}")) } };
    html! {
        tr {
            th scope="row" { (name(&tensor.name)) }
            td class="num" data-v=(tensor.n_weights) { (numbers::count(tensor.n_weights as u64)) }
            (number(tensor.rms))
            (number(tensor.loss))
            @if has_other {
                @if let Some(loss) = tensor.against { (number(loss)) } @else { td class="num" {} }
            }
            (number(tensor.loss_of_square))
            td { @if tensor.is_idle { "not used by any layer that ran" } }
        }
    }
}

fn heading(words: &str) -> Markup {
    html! { th scope="col" class="num" { (escape(words)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, loss: f64, against: Option<f64>) -> TensorSensitivity {
        TensorSensitivity {
            name: name.into(),
            n_weights: 4096,
            rms: 0.02,
            loss_of_square: loss / 2.5e-5,
            loss,
            against,
            is_idle: loss == 0.0,
        }
    }

    fn report(tensors: Vec<TensorSensitivity>) -> SensitivityReport {
        SensitivityReport {
            format: SensitivityReport::FORMAT.into(),
            version: SensitivityReport::VERSION,
            producer: "briquette".into(),
            model: "models/<b>".into(),
            fingerprint: "00".into(),
            contents: Default::default(),
            how: "gradient".into(),
            unit: "nats".into(),
            loss: None,
            data: Some("a<b>.txt".into()),
            n_samples: Some(64),
            against: Some("measured".into()),
            rank_correlation: Some(0.9876),
            tensors,
        }
    }

    #[test]
    fn tensors_are_listed_worst_first_with_the_other_method() {
        let page = of_sensitivity(&report(vec![
            tensor("quiet", 1e-6, Some(2e-6)),
            tensor("loud<script>", 1e-2, Some(3e-2)),
            tensor("idle", 0.0, None),
        ]));
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("<tr><th scope=\"row\">")).collect();
        assert_eq!(rows.len(), 3);
        assert!(
            rows[0].contains("1.000e-2") && rows[0].contains("3.000e-2") && rows[2].contains("not used by any layer"),
            "{rows:?}"
        );
        assert!(page.contains("with measured: 0.988") && page.contains("1.00e-2 <small>"), "{page}");
        assert_eq!(
            page.matches("class=\"dot\"").count() + page.matches("class=\"also\"").count(),
            4,
            "losses of 0 have no mark"
        );
        assert!(!page.contains("loud<script>") && !page.contains("<b>.txt") && !page.contains("NaN"));
        assert_eq!(
            page,
            of_sensitivity(&report(vec![
                tensor("loud<script>", 1e-2, Some(3e-2)),
                tensor("quiet", 1e-6, Some(2e-6)),
                tensor("idle", 0.0, None)
            ]))
        );
    }
}
