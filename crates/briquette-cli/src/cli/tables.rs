//! Tables and numbers for the terminal.

use super::text;
use briquette::core::printable::printable;
use briquette::pipeline::memory::{Need, Needs};
use briquette::pipeline::report::columns::{self, Align, GAP, MIN_NAME, pad, tail_of, wrap};
pub(crate) use briquette::pipeline::report::numbers::bytes;
use briquette::pipeline::report::width::width;
use std::io;

/// Least width of a last column of words; it is wrapped instead of cut.
const MIN_LAST: usize = 24;

/// Returns a table as wide as the terminal, with the first column left-aligned and numbers right-aligned.
///
/// Each cell stays in one row. If stdout is not a terminal, nothing is cut.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = put_table(&mut out, (headings, &[]), rows.len(), &|row| rows[row].clone());
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes a table like [`table`], with rows that are built one at a time, each twice.
///
/// On a narrow terminal, the columns `optional` are left out from the first on. Returns the headings of those
/// columns.
pub(crate) fn put_table<'h>(
    out: &mut dyn io::Write,
    (headings, optional): (&[&'h str], &[&str]),
    n_rows: usize,
    row: &dyn Fn(usize) -> Vec<String>,
) -> io::Result<Vec<&'h str>> {
    let row = |number: usize| row(number).iter().map(|cell| printable(cell)).collect::<Vec<String>>();
    let layout = TableLayout::of((headings, optional), (0..n_rows).map(row), text::width());
    let first: Vec<String> = headings.iter().map(ToString::to_string).collect();
    for cells in std::iter::once(first).chain((0..n_rows).map(row)) {
        out.write_all(layout.lines(&cells).as_bytes())?;
    }
    let is_left_out =
        |column: &usize| !layout.shown[..layout.widths.len()].contains(column) && !layout.is_empty[*column];
    Ok((0..headings.len()).filter(is_left_out).map(|column| headings[column]).collect())
}

/// The columns of a table.
#[derive(Debug)]
struct TableLayout {
    /// The indices of the shown columns.
    shown: Vec<usize>,
    /// The alignment of each shown column.
    aligns: Vec<Align>,
    /// The widths of the columns that fit: as many as `shown`, or fewer.
    widths: Vec<usize>,
    /// Whether a column has no values.
    is_empty: Vec<bool>,
    /// Whether the names in the first column all end with the same part.
    has_one_tail: bool,
}

/// Properties of the cells of a column.
#[derive(Debug, Clone, Copy)]
struct ColumnFacts {
    widest: usize,
    is_number: bool,
    is_shape: bool,
    is_empty: bool,
}

impl ColumnFacts {
    fn push(&mut self, cell: &str) {
        self.widest = width(cell).max(self.widest);
        self.is_number &= is_numeric(cell);
        self.is_shape |= cell.starts_with('[');
        self.is_empty &= ["", "-"].contains(&cell);
    }
}

impl TableLayout {
    /// Returns the layout of rows with these headings, in lines of at most `total` columns.
    fn of((headings, optional): (&[&str], &[&str]), rows: impl Iterator<Item = Vec<String>>, total: usize) -> Self {
        let fresh =
            |heading: &&str| ColumnFacts { widest: width(heading), is_number: true, is_shape: false, is_empty: true };
        let mut facts: Vec<ColumnFacts> = headings.iter().map(fresh).collect();
        let (mut tail, mut has_one_tail) = (None::<String>, true);
        for cells in rows {
            facts.iter_mut().zip(&cells).for_each(|(facts, cell)| facts.push(cell));
            has_one_tail &= tail.get_or_insert_with(|| tail_of(&cells[0]).into()) == tail_of(&cells[0]);
        }
        let empty = (1..headings.len()).filter(|column| facts[*column].is_empty);
        let named = optional.iter().filter_map(|name| headings.iter().position(|heading| heading == name));
        let shown = shown_of(&facts, &empty.chain(named).collect::<Vec<usize>>(), total);
        let align = |column: usize| match (column, facts[column].is_number) {
            (0, _) => Align::Name,
            (_, true) => Align::Right,
            (_, false) => Align::Left,
        };
        // A shape is not cut, although it is aligned like words.
        let fixed = |column: &usize| if facts[*column].is_shape { Align::Right } else { align(*column) };
        let fixed: Vec<Align> = shown.iter().map(fixed).collect();
        let mut widest: Vec<usize> = shown.iter().map(|column| facts[*column].widest).collect();
        let excess = columns::line_width(&widest).saturating_sub(total);
        if let (Some(last), Some(Align::Left)) = (widest.last_mut(), fixed.last()) {
            *last = (*last).min(last.saturating_sub(excess).max(MIN_LAST));
        }
        let aligns = shown.iter().map(|column| align(*column)).collect();
        let is_empty = facts.iter().map(|facts| facts.is_empty).collect();
        Self { widths: columns::widths(widest, &fixed, total), shown, aligns, is_empty, has_one_tail }
    }

    /// Returns the lines of one row; several if the last column is wrapped.
    fn lines(&self, cells: &[String]) -> String {
        let cells: Vec<&String> = self.shown.iter().map(|column| &cells[*column]).collect();
        let last = self.widths.len() - 1;
        let is_long = self.aligns[last] == Align::Left && width(cells[last]) > self.widths[last];
        let parts = if is_long { wrap(cells[last], self.widths[last]) } else { vec![cells[last].clone()] };
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate().take(last) {
            line += &pad(cell, self.widths[column], self.aligns[column], self.has_one_tail);
            line += &" ".repeat(GAP);
        }
        let indent = " ".repeat(width(&line));
        let mut out = String::new();
        for (place, part) in parts.iter().enumerate() {
            let lead = if place == 0 { &line } else { &indent };
            let part = pad(part, self.widths[last], self.aligns[last], self.has_one_tail);
            out += format!("{lead}{part}").trim_end();
            out.push('\n');
        }
        out
    }
}

/// Returns the columns that fit in `total` columns: all except as many leading ones of `optional` as needed.
fn shown_of(facts: &[ColumnFacts], optional: &[usize], total: usize) -> Vec<usize> {
    let mut is_shown = vec![true; facts.len()];
    let least = |column: usize| match facts[column] {
        ColumnFacts { widest, .. } if column == 0 => widest.min(MIN_NAME),
        ColumnFacts { widest, .. } if column + 1 == facts.len() => widest.min(MIN_LAST),
        ColumnFacts { widest, .. } => widest,
    };
    let fits = |is_shown: &[bool]| {
        let widths: Vec<usize> = (0..facts.len()).filter(|column| is_shown[*column]).map(least).collect();
        columns::line_width(&widths) <= total
    };
    let mut left_out = Vec::new();
    for column in optional {
        if fits(&is_shown) {
            break;
        }
        is_shown[*column] = false;
        left_out.push(*column);
    }
    // Leaving out a wide column may make room for an earlier one.
    for column in left_out.into_iter().rev() {
        is_shown[column] = true;
        is_shown[column] = fits(&is_shown);
    }
    (0..facts.len()).filter(|column| is_shown[*column]).collect()
}

fn is_numeric(cell: &str) -> bool {
    ["", "-", "NaN", "inf"].contains(&cell) || cell.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the predicted memory of runs, and the limit.
pub(crate) fn needs(needs: &Needs) -> String {
    let most = needs.limit_bytes.map_or(String::new(), |limit| format!(", limit {}", bytes(limit)));
    let line = |need: &Need| {
        format!("predicted memory: at least {} to {}{most}\n", bytes(need.weights_bytes), printable(&need.what))
    };
    needs.runs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(rows: &[[&str; 4]], total: usize) -> Vec<String> {
        let rows = || rows.iter().map(|row| row.map(String::from).to_vec());
        let layout = TableLayout::of((&["tensor", "shape", "bytes", "why"], &[]), rows(), total);
        rows().flat_map(|row| layout.lines(&row).lines().map(str::to_string).collect::<Vec<_>>()).collect()
    }

    const ROWS: [[&str; 4]; 2] = [
        ["encoder.layer.0.attention.output.dense.weight", "[384, 384]", "590 kB", "a reason with many words in it"],
        ["encoder.layer.1.attention.output.dense.weight", "[384, 1536]", "2.36 MB", "short"],
    ];

    #[test]
    fn a_narrow_terminal_keeps_shapes_numbers_layers_and_the_last_column() {
        let lines = drawn(&ROWS, 76);
        assert!(lines.iter().all(|line| width(line) <= 76), "{lines:#?}");
        assert!(lines[0].contains("0.attention.output.dense") && lines[0].contains("[384, 384] "), "{lines:#?}");
        let text = lines.join(" ");
        for word in "590 kB [384, 1536] 2.36 MB a reason with many words in it".split(' ') {
            assert!(text.contains(word), "{word}: {lines:#?}");
        }
    }

    #[test]
    fn optional_columns_make_room_for_names() {
        let rows = || ROWS.iter().map(|row| row.map(String::from).to_vec());
        let shown = |optional: &[&str], total: usize| {
            TableLayout::of((&["tensor", "shape", "bytes", "why"], optional), rows(), total).shown
        };
        assert_eq!(shown(&["why"], 60), [0, 1, 2]);
        assert_eq!(shown(&["bytes", "why"], 60), [0, 1, 2], "why is wide enough for both");
        assert_eq!(shown(&["bytes"], 72), [0, 1, 3]);
        assert_eq!(shown(&["bytes", "why"], usize::MAX), [0, 1, 2, 3]);
        let unknown = [["a.0.weight", "[1]", "-", "a reason"].map(String::from).to_vec()];
        let layout = TableLayout::of((&["tensor", "shape", "zeros", "why"], &[]), unknown.into_iter(), 28);
        assert_eq!(layout.shown, [0, 1, 3], "a column without a value is the first to go");
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        let lines = drawn(&ROWS, usize::MAX);
        assert!(lines.len() == 2 && lines[0].starts_with(ROWS[0][0]) && lines[0].ends_with(ROWS[0][3]), "{lines:#?}");
    }
}
