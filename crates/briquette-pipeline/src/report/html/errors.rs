//! Error by tensor, worst first.

use super::axis::PlotAxis;
use super::escape::name;
use super::family::{MAX_ROWS, TensorFamily, families};
use super::rows::{self, FigureRow, RowFigure};
use crate::report::{Report, TensorReport, numbers};
use maud::{Markup, html};

/// Returns the figure, or a sentence if no tensor has an error.
pub(super) fn section(report: &Report) -> Markup {
    let mut families = families(&report.tensors);
    families.retain_mut(|family| {
        family.members.retain(|tensor| decibels(tensor).is_some());
        !family.members.is_empty()
    });
    families.sort_by(|a, b| worst(a).total_cmp(&worst(b)));
    let Some(first) = families.first() else {
        return html! {
            section aria-labelledby="errors" {
                h2 id="errors" { "Error by tensor" }
                p { "No tensor differs from " (report.what_errors_are_against()) "." }
            }
        };
    };
    let against = report.what_errors_are_against();
    let lead = lead_of(first, against);
    let all = families.iter().flat_map(|family| &family.members).filter_map(|tensor| decibels(tensor));
    let (low, high) = all.clone().fold((0.0_f64, 0.0_f64), |(low, high), db| (low.min(db), high.max(db)));
    let axis = PlotAxis::holding(low, high);
    let n_shown = all.count();
    let n_hidden = families.len().saturating_sub(MAX_ROWS);
    families.truncate(MAX_ROWS);
    RowFigure {
        id: "errors",
        title: "Error by tensor, worst first",
        lead,
        axis: axis.labels(|tick| format!("{tick:.0} dB"), |tick| relative_text(10.0_f64.powf(-tick / 20.0))),
        rows: families.iter().map(|family| row(family, &axis)).collect(),
        foot: foot_of(report.tensors.len() - n_shown, n_hidden, against),
    }
    .to_html()
}

/// Returns the SQNR, if it can be drawn.
fn decibels(tensor: &TensorReport) -> Option<f64> {
    tensor.error?.sqnr_db.filter(|db| db.is_finite()).map(|db| db.clamp(-200.0, 400.0))
}

fn worst(family: &TensorFamily) -> f64 {
    family.members.iter().filter_map(|tensor| decibels(tensor)).fold(f64::INFINITY, f64::min)
}

fn lead_of(first: &TensorFamily, against: &str) -> Markup {
    let db = worst(first);
    let worst = first.members.iter().find(|tensor| decibels(tensor) == Some(db)).unwrap_or(&first.members[0]);
    let relative = worst.error.map_or(f64::NAN, |error| error.relative);
    html! {
        "Signal to quantization noise (SQNR), one " span class="key dot" {}
        " for each tensor: further right is closer to " (against) ". The worst is " b { (name(&worst.name)) } " with "
        (numbers::decimal(db, 1)) " dB; its difference from " (against) " is " (relative_text(relative))
        " of the norm."
    }
}

fn foot_of(n_equal: usize, n_hidden: usize, against: &str) -> Markup {
    html! {
        "The second line of the scale is the relative error: the norm of the difference over the norm of " (against) "."
        @if n_equal > 0 {
            " " (n_equal) " tensors are not shown: equal to " (against) ", or tied to one that is shown."
        }
        @if n_hidden > 0 { " " (n_hidden) " rows with less error are not drawn." }
    }
}

/// Returns a text such as `3.2 %`, with fewer digits for large errors and an exponent for very small ones.
fn relative_text(relative: f64) -> String {
    match 100.0 * relative {
        percent if !percent.is_finite() || percent > 1e6 => numbers::NONE.into(),
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent if percent >= 1.0 => format!("{percent:.1} %").replace(".0 ", " "),
        percent if percent >= 0.0095 => format!("{percent:.2} %").replace("0 %", " %"),
        percent => format!("{percent:.0e} %"),
    }
}

fn row(family: &TensorFamily, axis: &PlotAxis) -> FigureRow {
    let places: Vec<f64> = family.members.iter().filter_map(|tensor| decibels(tensor)).collect();
    let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = worst(family);
    let (x1, x2) = (axis.place(low), axis.place(high));
    let is_one = numbers::decimal(low, 1) == numbers::decimal(high, 1);
    FigureRow {
        label: name(&family.label),
        note: family.note(),
        marks: html! {
            (axis.grid())
            line class="stem" x1=(format_args!("{x1:.2}%")) x2=(format_args!("{x2:.2}%")) y1="10" y2="10" {}
            @for x in rows::marks(places.iter().map(|db| axis.place(*db))) {
                circle class="dot" cx=(format_args!("{x:.2}%")) cy="10" r="5" {}
            }
        },
        value: html! {
            @if is_one { (format_args!("{low:.1} dB")) } @else { (format_args!("{low:.1} to {high:.1} dB")) }
        },
    }
}
