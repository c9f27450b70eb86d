//! Text in columns, measured in terminal columns.

use crate::report::width::{fit, take, width};

/// Terminal columns between two columns of a table.
pub const GAP: usize = 2;
/// Least width of a column of words.
pub const MIN_WORDS: usize = 8;
/// Least width of a column of names while other columns can shrink.
pub const MIN_NAME: usize = 28;

/// The alignment of a column, and how its cells are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words: a long cell loses its middle. A scheme of several parts loses its last parts.
    Left,
    /// Tensor names: a long cell keeps the layer numbers, see [`fit_name`].
    Name,
    /// Numbers: never cut.
    Right,
}

/// Returns the width of each column, so that a line has at most `total` columns.
///
/// `widest` has the widest cell of each column. Words are cut first, then names; then the last columns are
/// dropped. The result may therefore be shorter than `widest`.
pub fn widths(widest: Vec<usize>, aligns: &[Align], total: usize) -> Vec<usize> {
    let mut widths = widest;
    loop {
        let excess = line_width(&widths).saturating_sub(total);
        if excess == 0 {
            return widths;
        }
        // The number of columns that a column can lose and stay readable.
        let spare = |column: usize| match aligns[column] {
            Align::Left => widths[column].saturating_sub(MIN_WORDS),
            Align::Name => widths[column].saturating_sub(MIN_NAME),
            Align::Right => 0,
        };
        let widest =
            (0..widths.len()).max_by_key(|&column| (spare(column), column)).filter(|&column| spare(column) > 0);
        let name = (0..widths.len()).find(|&column| aligns[column] == Align::Name && widths[column] > MIN_WORDS);
        match widest {
            Some(column) => {
                let next = (0..widths.len()).filter(|&other| other != column).map(spare).max().unwrap_or(0);
                // The widest column shrinks to the next widest in one step. Columns of equal width then shrink
                // in turn.
                let step = (spare(column) - next).clamp(1, excess);
                widths[column] -= step;
            }
            None if name.is_some() => widths[name.unwrap_or_default()] -= 1,
            _ if widths.len() > 1 => drop(widths.pop()),
            _ => widths[0] = total,
        }
    }
}

/// Returns the width of a line with columns of these widths.
pub fn line_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Cuts or pads a cell to a width. `has_one_tail` is for names, see [`fit_name`].
pub fn pad(cell: &str, to: usize, align: Align, has_one_tail: bool) -> String {
    let cell = match align {
        Align::Name => fit_name(cell, to, has_one_tail),
        Align::Left => fit_scheme(cell, to),
        Align::Right => fit(cell, to),
    };
    let blank = " ".repeat(to.saturating_sub(width(&cell)));
    match align {
        Align::Left | Align::Name => cell + &blank,
        Align::Right => blank + &cell,
    }
}

/// Shortens a scheme to at most `limit` columns. Its first part differs most, and is kept longest:
/// `step3.563e-4-tensor` becomes `step3.563e-4…`. Cells with spaces lose their middle.
fn fit_scheme(cell: &str, limit: usize) -> String {
    if width(cell) <= limit || cell.contains(' ') {
        return fit(cell, limit);
    }
    let is_exponent = |at: usize| cell[..at].ends_with('e') && cell[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let ends = cell.match_indices(['-', '+']).map(|(at, _)| at).filter(|&at| at > 0 && !is_exponent(at));
    let heads: Vec<&str> = ends.map(|at| &cell[..at]).collect();
    match heads.iter().rev().find(|head| width(head) < limit) {
        Some(head) => format!("{head}…"),
        None => fit(heads.first().unwrap_or(&cell), limit),
    }
}

/// Returns the last part of a tensor's name, such as `weight`.
pub fn tail_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, tail)| tail)
}

/// Shortens a tensor's name to at most `limit` columns, with `…` for omitted parts.
///
/// Layer numbers are kept first, then the last parts: `encoder.layer.0.attention.self.query.weight` becomes
/// `…0…self.query…` in 16 columns. If all names of a table end with the same part (`has_one_tail`), that part
/// is dropped first.
pub fn fit_name(name: &str, limit: usize, has_one_tail: bool) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    if width(name) <= limit || parts.len() < 3 {
        return fit(name, limit);
    }
    let mut is_kept: Vec<bool> = parts.iter().map(|part| is_number(part)).collect();
    let n_own = parts.len() - usize::from(has_one_tail);
    let mut n_words = 0;
    for place in (0..n_own).rev().chain(n_own..parts.len()).filter(|&place| !is_number(parts[place])) {
        is_kept[place] = true;
        if width(&abridged(&parts, &is_kept)) > limit {
            is_kept[place] = false;
            break;
        }
        n_words += 1;
    }
    // The last part alone, such as `weight`, is not enough.
    if n_words > usize::from(!has_one_tail) {
        return abridged(&parts, &is_kept);
    }
    let Some(number) = parts.iter().rposition(|part| is_number(part)) else { return fit(name, limit) };
    // The next part is longer than the column; its end is shown.
    let numbers: Vec<bool> = parts.iter().map(|part| is_number(part)).collect();
    let abridged = abridged(&parts, &numbers);
    let lead = abridged.trim_end_matches('…');
    let words = parts[number + 1..n_own.max(number + 1)].join(".");
    match limit.checked_sub(width(lead) + 1) {
        Some(room) if room >= MIN_WORDS / 2 => {
            let tail: String = take(words.chars().rev(), room).chars().rev().collect();
            format!("{lead}…{tail}")
        }
        _ => fit(name, limit),
    }
}

/// Returns whether a part of a name is a layer number, or `*` for several.
pub(crate) fn is_number(part: &str) -> bool {
    part == "*" || !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the kept parts of a name, with `…` for each omitted run.
fn abridged(parts: &[&str], is_kept: &[bool]) -> String {
    let mut out = String::new();
    for (place, part) in parts.iter().enumerate() {
        if is_kept[place] {
            out += if place > 0 && is_kept[place - 1] { "." } else { "" };
            out += part;
        } else if place == 0 || is_kept[place - 1] {
            out.push('…');
        }
    }
    out
}

/// Wraps text at spaces to lines of at most `limit` columns. A word is split only if it is longer than a line.
pub fn wrap(text: &str, limit: usize) -> Vec<String> {
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

/// Wraps like [`wrap`]; the first `indent` bytes are a lead, and later lines are indented by as much.
pub fn wrap_hanging(text: &str, limit: usize, indent: usize) -> Vec<String> {
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
        assert_eq!(pad("層", 4, Align::Right, false), "  層");
    }

    #[test]
    fn lines_are_wrapped_at_spaces_before_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap_hanging("a:  one two", 7, 4), ["a:  one", "    two"]);
    }

    #[test]
    fn a_shortened_scheme_keeps_the_part_that_differs() {
        let cut = |cell: &str, to: usize| pad(cell, to, Align::Left, false);
        assert_eq!(cut("step3.563e-4-tensor", 13), "step3.563e-4…");
        assert_eq!(cut("step3.563e-4-tensor", 12), "step3.563e-4");
        assert_eq!(cut("step3.563e-4-tensor", 10), "step…63e-4");
        assert_eq!(cut("step3.563e-4-tensor", 20), "step3.563e-4-tensor ");
        assert_eq!(cut("int4-g128-asym+2:4", 15), "int4-g128-asym…");
        assert_eq!(cut("int4-g128-asym+2:4", 10), "int4-g128…");
        assert_eq!(cut("8-bit per channel", 12), fit("8-bit per channel", 12));
        for (cell, limit) in
            ["-", "é-é-é", "+", "step-", "-a-b"].into_iter().flat_map(|cell| (0..7).map(move |n| (cell, n)))
        {
            assert!(width(&fit_scheme(cell, limit)) <= limit, "{cell:?} in {limit}");
        }
    }

    #[test]
    fn a_shortened_name_keeps_its_layer_and_its_last_parts() {
        let name = "encoder.layer.11.attention.output.dense.weight";
        assert_eq!(fit_name(name, 20, true), "…11…output.dense…");
        assert_eq!(fit_name(name, 20, false), "…11…dense.weight");
        assert_eq!(fit_name(name, 36, true), "…layer.11.attention.output.dense…");
        assert_eq!(fit_name("layers.3.a_part_that_is_long.weight", 14, true), "…3…hat_is_long");
        assert_eq!(fit_name(name, 100, true), name);
        let table = "embeddings.token_type_embeddings.weight";
        assert_eq!(fit_name(table, 24, false), "embeddings.…dings.weight");
        assert_eq!(fit_name("layer.*.intermediate.weight", 16, false), "…*…ediate.weight");
    }

    #[test]
    fn shortened_names_stay_distinct() {
        let kinds = ["attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense"];
        let names = (0..12).flat_map(|layer| kinds.map(|kind| format!("bert.encoder.layer.{layer}.{kind}.weight")));
        for limit in [18, 20, 24, 30] {
            let short: std::collections::BTreeSet<String> =
                names.clone().map(|name| fit_name(&name, limit, true)).collect();
            assert!(short.len() == 48 && short.iter().all(|name| width(name) <= limit), "{limit}: {short:?}");
        }
    }

    #[test]
    fn a_shortened_name_fits_its_column() {
        for name in
            ["", ".", "a.b", "0.1.2.3.4.5.6.7.8.9.10.11", "層.0.層層層層層層層.weight", "x.1.y.2.z", "a..b..c..d"]
        {
            for limit in 0..40 {
                for has_one_tail in [false, true] {
                    let short = fit_name(name, limit, has_one_tail);
                    assert!(width(&short) <= limit, "{name:?} in {limit}: {short:?}");
                }
            }
        }
    }
}
