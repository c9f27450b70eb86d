//! Bytes before and after, by tensor.

use super::axis::PlotAxis;
use super::escape::name;
use super::family::{MAX_ROWS, TensorFamily, families};
use super::rows::{FigureRow, RowFigure};
use crate::report::{Report, TensorReport, numbers};
use maud::{Markup, html};
use std::borrow::Cow;

/// A row below this fraction of the largest is not visible.
const LEAST_VISIBLE: u64 = 400;
/// Number of rows that are drawn even if they are small.
const MIN_ROWS: usize = 8;

/// Returns the figure; empty for a model without tensors.
pub(super) fn section(report: &Report) -> Markup {
    let tensors = with_gone(report);
    let mut families = families(&tensors);
    families.sort_by_key(|family| std::cmp::Reverse(family.before_bytes()));
    let Some(largest) = families.first() else { return Markup::default() };
    let is_shared = families.iter().any(|family| family.members.len() > 1);
    let lead = lead_of(largest, is_shared, report);
    let smaller = split_smaller(&mut families);
    families.extend(smaller);
    let extents = families.iter().map(|family| family.before_bytes().max(family.after_bytes()));
    let axis = PlotAxis::holding(0.0, extents.max().unwrap_or(0) as f64);
    RowFigure {
        id: "bytes",
        title: "Bytes by tensor",
        lead,
        axis: axis.labels(|tick| numbers::bytes(tick as u64).replace(".00", ""), |_| String::new()),
        rows: families.iter().map(|family| row(family, &axis)).collect(),
        foot: Markup::default(),
    }
    .to_html()
}

/// Returns the tensors, with those that only the original has.
fn with_gone(report: &Report) -> Cow<'_, [TensorReport]> {
    if report.gone.is_empty() {
        return Cow::Borrowed(&report.tensors);
    }
    let gone = report.gone.iter().map(TensorReport::from);
    Cow::Owned(report.tensors.iter().cloned().chain(gone).collect())
}

/// Merges the families that are too small or too many to draw into one.
fn split_smaller<'a>(families: &mut Vec<TensorFamily<'a>>) -> Option<TensorFamily<'a>> {
    let largest = families.first()?.before_bytes();
    let n_visible = families.iter().take_while(|family| family.before_bytes() >= largest / LEAST_VISIBLE).count();
    let n_rows = n_visible.clamp(MIN_ROWS, MAX_ROWS - 1);
    if families.len() <= n_rows + 1 {
        return None;
    }
    let members: Vec<_> = families.split_off(n_rows).into_iter().flat_map(|family| family.members).collect();
    Some(TensorFamily { label: format!("{} smaller tensors", members.len()), members })
}

fn lead_of(largest: &TensorFamily, is_shared: bool, report: &Report) -> Markup {
    let before = numbers::percent(numbers::share(largest.before_bytes(), report.before.tensor_bytes));
    let after = numbers::percent(numbers::share(largest.after_bytes(), report.after.tensor_bytes));
    html! {
        span class="key before" {} " before, " span class="key after" {} " after. "
        b { (name(&largest.label)) } " had " (before) " of the tensors' bytes before, and has " (after) " after."
        @if is_shared { " Tensors whose names differ only in layer numbers share a row, marked ×." }
    }
}

fn row(family: &TensorFamily, axis: &PlotAxis) -> FigureRow {
    let (before, after) = (family.before_bytes(), family.after_bytes());
    let (width_before, width_after) = (axis.place(before as f64), axis.place(after as f64));
    let bytes = numbers::bytes;
    FigureRow {
        label: name(&family.label),
        note: family.note(),
        marks: html! {
            (axis.grid())
            rect class="before" y="2" height="16" width=(format_args!("{width_before:.2}%")) {}
            rect class="after" y="6" height="8" width=(format_args!("{width_after:.2}%")) {}
        },
        value: html! {
            @if before == after {
                (bytes(after)) " " small { "unchanged" }
            } @else if before == 0 {
                "new → " (bytes(after))
            } @else if after == 0 && family.is_gone() {
                (bytes(before)) " → gone"
            } @else {
                (bytes(before)) " → " (bytes(after))
            }
        },
    }
}
