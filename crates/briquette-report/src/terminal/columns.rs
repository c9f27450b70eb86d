//! Text in columns, measured as a terminal shows it.

use super::Paint;
use crate::width::{fit, take, width};

/// Between two columns.
const GAP: usize = 2;
/// The least that a column of words is cut to.
const MIN_WORDS: usize = 8;

/// Which side a column's cells are pushed to. Left is for words, which may be cut; right is for numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A table with one line of headings.
#[derive(Debug)]
pub(super) struct TextColumns {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl TextColumns {
    /// A table of so many columns as headings.
    pub(super) fn new(headings: &[&str], aligns: &[Align]) -> Self {
        Self { aligns: aligns.to_vec(), rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row of as many cells.
    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Lines of at most `total` columns; words are cut first, then the last columns go.
    pub(super) fn to_text(&self, total: usize, paint: Paint) -> String {
        let widths = self.widths(total);
        let mut out = String::new();
        for (place, row) in self.rows.iter().enumerate() {
            let cells =
                row.iter().zip(&widths).zip(&self.aligns).map(|((cell, width), align)| pad(cell, *width, *align));
            let line = cells.collect::<Vec<String>>().join(&" ".repeat(GAP));
            let line = line.trim_end();
            out += &if place == 0 { paint.dim(line) } else { line.to_string() };
            out.push('\n');
        }
        out
    }

    fn widths(&self, total: usize) -> Vec<usize> {
        let widest = |column: usize| self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.aligns.len()).map(widest).collect();
        while self.excess(&widths, total) > 0 {
            let excess = self.excess(&widths, total);
            let words = (0..widths.len()).filter(|&column| self.aligns[column] == Align::Left);
            match words.max_by_key(|&column| (widths[column], column)) {
                Some(column) if widths[column] > MIN_WORDS => {
                    let others =
                        (0..widths.len()).filter(|&other| other != column && self.aligns[other] == Align::Left);
                    let next = others.map(|other| widths[other]).max().unwrap_or(0).max(MIN_WORDS);
                    // The widest shrinks to the next widest at once; columns of one width then take turns, one character each.
                    let step = widths[column].saturating_sub(next).clamp(1, excess);
                    widths[column] -= step;
                }
                _ if widths.len() > 1 => drop(widths.pop()),
                _ => widths[0] = total,
            }
        }
        widths
    }

    fn excess(&self, widths: &[usize], total: usize) -> usize {
        (widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)).saturating_sub(total)
    }
}

fn pad(cell: &str, to: usize, align: Align) -> String {
    let cell = fit(cell, to);
    let blank = " ".repeat(to.saturating_sub(width(&cell)));
    match align {
        Align::Left => cell + &blank,
        Align::Right => blank + &cell,
    }
}

/// Lines of at most `limit` columns, broken at spaces, and within a word only where it is longer than a line.
pub(super) fn wrap(text: &str, limit: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word = word.to_string();
        if !line.is_empty() && width(&line) + 1 + width(&word) > limit {
            lines.push(std::mem::take(&mut line));
        }
        while width(&word) > limit {
            let head = take(word.chars(), limit.max(2));
            word.drain(..head.len());
            lines.push(head);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &word;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Like [`wrap`], where the first `indent` bytes are a lead and later lines are indented by as much.
pub(super) fn wrap_hanging(text: &str, limit: usize, indent: usize) -> Vec<String> {
    let (lead, rest) = text.split_at_checked(indent).unwrap_or((text, ""));
    let lines = wrap(rest, limit.saturating_sub(indent).max(2));
    let blank = " ".repeat(indent);
    lines.iter().enumerate().map(|(place, line)| format!("{}{line}", if place == 0 { lead } else { &blank })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(pad("層", 4, Align::Right), "  層");
    }

    #[test]
    fn lines_break_at_spaces_and_only_then_in_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap_hanging("a:  one two", 7, 4), ["a:  one", "    two"]);
    }
}
