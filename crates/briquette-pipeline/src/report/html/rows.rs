//! A figure of rows: a name, a drawing on a common scale, and a value.
//!
//! The words are text outside of the drawing, so that they do not shrink on a phone and screen readers can read
//! them.

use super::escape::escape;
use maud::{Markup, html};

/// A row.
#[derive(Debug)]
pub(super) struct FigureRow {
    /// The name of the row.
    pub(super) label: Markup,
    /// Small plain text beside the label.
    pub(super) note: String,
    /// The drawing as SVG.
    pub(super) marks: Markup,
    /// The value as text.
    pub(super) value: Markup,
}

/// A figure of rows.
#[derive(Debug)]
pub(super) struct RowFigure {
    /// The id of the figure in the page.
    pub(super) id: &'static str,
    /// The title.
    pub(super) title: &'static str,
    /// An introduction.
    pub(super) lead: Markup,
    /// The labels of the scale; see [`super::axis::PlotAxis::labels`].
    pub(super) axis: Markup,
    /// The rows from top to bottom.
    pub(super) rows: Vec<FigureRow>,
    /// Small text below.
    pub(super) foot: Markup,
}

impl RowFigure {
    /// Returns the figure as HTML.
    pub(super) fn to_html(&self) -> Markup {
        let Self { id, title, lead, axis, rows, foot } = self;
        html! {
            section aria-labelledby=(id) {
                figure {
                    figcaption { h2 id=(id) { (title) } p { (lead) } }
                    div class="scale" { span {} (axis) span {} }
                    ul class="rows" { @for part in rows { (row(part)) "\n" } }
                    @if !foot.0.is_empty() { p class="fine" { (foot) } }
                }
            }
        }
    }
}

/// Largest number of marks of a row that are drawn individually.
const MAX_MARKS: usize = 200;

/// Returns the positions of a row's marks, in percent of the width; if there are very many, overlapping marks
/// are merged.
pub(super) fn marks(places: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut places: Vec<f64> = places.collect();
    if places.len() > MAX_MARKS {
        let n_steps = MAX_MARKS as f64;
        places.iter_mut().for_each(|place| *place = (*place * n_steps / 100.0).round() * 100.0 / n_steps);
        places.sort_by(f64::total_cmp);
        places.dedup();
    }
    places
}

fn row(row: &FigureRow) -> Markup {
    let FigureRow { label, note, marks, value } = row;
    html! {
        li class="row" {
            span class="label" {
                (label)
                @if !note.is_empty() { " " small class="times" { (escape(note)) } }
            }
            svg class="plot" height="20" aria-hidden="true" { (marks) }
            span class="value" { (value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_marks_are_all_drawn_and_many_are_merged() {
        assert_eq!(marks([3.0, 1.0, 3.0].into_iter()), [3.0, 1.0, 3.0]);
        let many = marks((0..100_000).map(|i| f64::from(i) / 1000.0));
        assert_eq!((many.len(), many[0], many[200]), (201, 0.0, 100.0));
    }
}
