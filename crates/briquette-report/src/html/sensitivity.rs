//! The page of sensitivities: the predicted loss of each tensor, worst first.

use super::axis::PlotAxis;
use super::escape::{escape, name};
use super::family::MAX_ROWS;
use super::frame;
use super::rows::{FigureRow, RowFigure};
use crate::{SensitivityReport, TensorSensitivity, numbers};
use std::fmt::Write;

/// Largest number of tensors in the table.
const MAX_TENSORS: usize = 1000;

/// Returns the page. Equal reports give equal bytes.
pub fn of_sensitivity(report: &SensitivityReport) -> String {
    let worst = worst_first(report);
    let sections = [headline(report), figure(report, &worst), table(report, &worst)];
    let footer = format!(
        "Written by {}. The file beside this page has the same figures for programs.",
        escape(&report.producer)
    );
    frame::page(&format!("{}, sensitivity", numbers::last_part(&report.model)), &sections.concat(), &footer)
}

/// Returns tensors by loss, largest first.
fn worst_first(report: &SensitivityReport) -> Vec<&TensorSensitivity> {
    let mut tensors: Vec<&TensorSensitivity> = report.tensors.iter().collect();
    tensors.sort_by(|a, b| b.loss.total_cmp(&a.loss).then(a.name.cmp(&b.name)));
    tensors
}

fn headline(report: &SensitivityReport) -> String {
    let on = match (&report.data, report.n_samples) {
        (Some(data), Some(n)) => format!(" on at most {n} items of {}", name(data)),
        _ => String::new(),
    };
    let held = match (&report.against, report.rank_correlation) {
        (Some(other), Some(rank)) => {
            format!("<p class=\"verdict\">Rank correlation with {}: {rank:.3}.</p>\n", escape(other))
        }
        _ => String::new(),
    };
    format!(
        "<header>\n<p class=\"kicker\">{model}</p>\n<h1><span>Sensitivity of {n} tensors</span></h1>\n{held}\
         <p class=\"fine\">Method: {how}{on}, in {unit}.</p>\n</header>\n",
        model = name(&report.model),
        n = report.tensors.len(),
        how = escape(&report.how),
        unit = escape(&report.unit),
    )
}

/// Returns the base 10 logarithm of a loss, if it can be drawn.
fn place(loss: f64) -> Option<f64> {
    Some(loss.log10()).filter(|log| log.is_finite())
}

fn figure(report: &SensitivityReport, worst: &[&TensorSensitivity]) -> String {
    let shown = &worst[..worst.len().min(MAX_ROWS)];
    let logs = shown.iter().flat_map(|tensor| [Some(tensor.loss), tensor.against]).flatten().filter_map(place);
    let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
    if low > high {
        return String::new();
    }
    let axis = PlotAxis::holding(low.floor(), high.ceil());
    let total: f64 = report.tensors.iter().map(|tensor| tensor.loss).sum();
    let row = |tensor: &&TensorSensitivity| {
        let dot = |loss: f64, class: &str| {
            place(loss).map_or(String::new(), |log| {
                format!("<circle class=\"{class}\" cx=\"{:.2}%\" cy=\"10\" r=\"5\"/>", axis.place(log))
            })
        };
        FigureRow {
            label: name(&tensor.name),
            note: numbers::count(tensor.n_weights as u64),
            marks: axis.grid()
                + &tensor.against.map_or(String::new(), |loss| dot(loss, "also"))
                + &dot(tensor.loss, "dot"),
            value: format!("{:.2e} <small>{}</small>", tensor.loss, numbers::percent(tensor.loss / total.max(1e-300))),
        }
    };
    let against =
        report.against.as_ref().map_or(String::new(), |other| format!(" Rings are the losses by {}.", escape(other)));
    RowFigure {
        id: "losses",
        title: "Loss by tensor, worst first",
        lead: format!(
            "Loss with only this tensor quantized to about four bits (a step of a quarter of its root mean square), and its share of the total \
             all.{against}"
        ),
        axis: axis.labels(|tick| format!("{:.0e}", 10.0_f64.powf(tick)), |_| String::new()),
        rows: shown.iter().map(row).collect(),
        foot: match worst.len() - shown.len() {
            0 => String::new(),
            n => format!("{n} tensors with smaller losses are not drawn."),
        },
    }
    .to_html()
}

fn table(report: &SensitivityReport, worst: &[&TensorSensitivity]) -> String {
    let number = |value: f64| format!("<td class=\"num\" data-v=\"{value}\">{value:.3e}</td>");
    let against = |tensor: &TensorSensitivity| tensor.against.map_or("<td class=\"num\"></td>".into(), number);
    let mut rows = String::new();
    for tensor in worst.iter().take(MAX_TENSORS) {
        let _ = writeln!(
            rows,
            "<tr><th scope=\"row\">{}</th><td class=\"num\" data-v=\"{n}\">{}</td>{}{}{}{}<td>{}</td></tr>",
            name(&tensor.name),
            numbers::count(tensor.n_weights as u64),
            number(tensor.rms),
            number(tensor.loss),
            if report.against.is_some() { against(tensor) } else { String::new() },
            number(tensor.loss_of_square),
            if tensor.is_idle { "not used by any layer that ran" } else { "" },
            n = tensor.n_weights,
        );
    }
    let other = report.against.as_ref().map_or(String::new(), |how| heading(&format!("By {}", escape(how))));
    let left = match worst.len().saturating_sub(MAX_TENSORS) {
        0 => String::new(),
        n => format!("<p class=\"fine\">{n} more are in the file beside this page.</p>\n"),
    };
    format!(
        "<section aria-labelledby=\"all\">\n<h2 id=\"all\">All tensors</h2>\n{left}\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"all\">\n<table class=\"tensors\">\n\
         <thead><tr><th scope=\"col\">Tensor</th>{}{}{}{other}{}<th scope=\"col\"></th></tr></thead>\n\
         <tbody id=\"tensors\">\n{rows}</tbody>\n</table></div>\n</section>\n",
        heading("Weights"),
        heading("RMS"),
        heading("Loss at step RMS/4"),
        heading("Loss over step²"),
    )
}

fn heading(words: &str) -> String {
    format!("<th scope=\"col\" class=\"num\">{words}</th>")
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
