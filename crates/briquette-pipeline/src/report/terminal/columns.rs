//! A table of a summary, with headings in a faint colour.

use super::Paint;
use crate::report::columns::{Align, GAP, pad, tail_of, widths};
use crate::report::width::width;

/// A table with one line of headings.
#[derive(Debug)]
pub(super) struct TextColumns {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl TextColumns {
    /// Creates a table with these headings and no rows.
    pub(super) fn new(headings: &[&str], aligns: &[Align]) -> Self {
        Self { aligns: aligns.to_vec(), rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns lines of at most `total` columns. Words are cut first, then the last columns are dropped.
    pub(super) fn to_text(&self, total: usize, paint: Paint) -> String {
        let widest = |column: usize| self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
        let widths = widths((0..self.aligns.len()).map(widest).collect(), &self.aligns, total);
        let has_one_tail: Vec<bool> = (0..self.aligns.len()).map(|column| self.has_one_tail(column)).collect();
        let mut out = String::new();
        for (place, row) in self.rows.iter().enumerate() {
            let cells = widths
                .iter()
                .enumerate()
                .map(|(column, width)| pad(&row[column], *width, self.aligns[column], has_one_tail[column]));
            let line = cells.collect::<Vec<String>>().join(&" ".repeat(GAP));
            let line = line.trim_end();
            out += &if place == 0 { paint.dim(line) } else { line.to_string() };
            out.push('\n');
        }
        out
    }

    /// Returns whether all names of a column end with the same part.
    fn has_one_tail(&self, column: usize) -> bool {
        let mut tails = self.rows.iter().skip(1).map(|row| tail_of(&row[column]));
        let first = tails.next();
        self.aligns[column] == Align::Name && tails.all(|tail| Some(tail) == first)
    }
}
