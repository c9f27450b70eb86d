//! The width of text in terminal columns, and text cut to a width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns the number of terminal columns of a text.
pub fn width(text: &str) -> usize {
    // Most text is ASCII, with one column per character.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) { text.len() } else { text.width() }
}

/// Returns text of at most `limit` columns; a longer text loses its middle, because names differ at both ends.
pub(super) fn fit(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.into();
    }
    if limit == 0 {
        return String::new();
    }
    let head = take(text.chars(), (limit - 1) / 2);
    let tail: String = take(text.chars().rev(), limit - 1 - width(&head)).chars().rev().collect();
    format!("{head}…{tail}")
}

/// Returns the first characters that take at most `limit` columns.
pub(super) fn take(chars: impl Iterator<Item = char>, limit: usize) -> String {
    let mut left = limit;
    let fits = |c: &char| {
        let n = c.width().unwrap_or(0);
        let is_in = n <= left;
        left = left.saturating_sub(n);
        is_in
    };
    chars.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_both_ends() {
        assert_eq!(fit("layers.3.up.weight", 9), "laye…ight");
        assert_eq!((fit("abc", 3), fit("abc", 1), fit("abc", 0)), ("abc".into(), "…".into(), String::new()));
        assert!(width(&fit("層層層層層層", 6)) <= 6);
    }
}
