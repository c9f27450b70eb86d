//! The numbers of a TOML file with their positions and original text, which serde does not preserve.

use crate::parse::ranges::{called, refused};
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// A number in a file.
struct WrittenNumber {
    /// The keys and list indices that lead to the number.
    path: Vec<String>,
    span: Range<usize>,
    text: String,
    value: f64,
}

/// Returns the position of the first NaN or infinity and its error message.
///
/// The check reads the text because JSON has no NaN: in a matrix, a `set` or the sizes of a student, it would
/// silently become null.
pub(crate) fn not_finite(text: &str) -> Option<(usize, String)> {
    let culprit = numbers_of(text).into_iter().find(|number| !number.value.is_finite())?;
    Some((culprit.span.start, culprit.refusal(text)?))
}

/// Returns the range error for a number at the position of a serde error.
///
/// It is clearer than serde's message, which has the name of a Rust type.
pub(crate) fn out_of_range(text: &str, span: Range<usize>) -> Option<String> {
    let is_there = |number: &WrittenNumber| number.span.start < span.end && span.start < number.span.end;
    numbers_of(text).iter().filter(|number| is_there(number)).find_map(|number| number.refusal(text))
}

impl WrittenNumber {
    /// Returns the range error, such as `stage 1 (prune): sparsity: found nan, expected a number from 0 to
    /// below 1`.
    fn refusal(&self, text: &str) -> Option<String> {
        let message = refused(&self.path.join("."), self.value, &self.text).err()?;
        let tree: serde_json::Value = toml::from_str(text).unwrap_or_default();
        Some(format!("{}: {message}", called(&tree, &self.path)))
    }
}

/// Returns every number, in the order of the file.
fn numbers_of(text: &str) -> Vec<WrittenNumber> {
    let mut found = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        let span = table.span();
        collect(&DeValue::Table(table.into_inner()), span, &mut Vec::new(), &mut found);
    }
    found.sort_by_key(|number: &WrittenNumber| number.span.start);
    found
}

fn collect(value: &DeValue, span: Range<usize>, path: &mut Vec<String>, found: &mut Vec<WrittenNumber>) {
    let (text, value) = match value {
        DeValue::Table(table) => {
            for (key, value) in table {
                path.push(key.get_ref().to_string());
                collect(value.get_ref(), value.span(), path, found);
                path.pop();
            }
            return;
        }
        DeValue::Array(items) => {
            for (place, value) in items.iter().enumerate() {
                path.push(place.to_string());
                collect(value.get_ref(), value.span(), path, found);
                path.pop();
            }
            return;
        }
        DeValue::Float(number) => (number.as_str(), number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Integer(number) if number.radix() == 10 => {
            (number.as_str(), number.as_str().parse().unwrap_or(f64::NAN))
        }
        _ => return,
    };
    found.push(WrittenNumber { path: path.clone(), span, text: text.to_string(), value });
}

/// Returns the bare word at the position of a parse error; it is probably a string without quotes.
pub(crate) fn unquoted(text: &str, span: Range<usize>) -> Option<&str> {
    let is_part = |letter: char| letter.is_alphanumeric() || "._-/~:*".contains(letter);
    let line = text.get(..span.start)?.rfind('\n').map_or(0, |end| end + 1);
    let rest = text[line..].split('\n').next().unwrap_or_default();
    // `[a.b]` is a table header: the text in brackets is a key.
    if rest.trim_start().starts_with('[') {
        return None;
    }
    let words = rest.match_indices(['=', '[', ',']).map(|(at, sign)| {
        let blank = rest[at + sign.len()..].find(|letter: char| !letter.is_whitespace()).unwrap_or(0);
        let start = at + sign.len() + blank;
        let length = rest[start..].find(|letter| !is_part(letter)).unwrap_or(rest.len() - start);
        (line + start, &rest[start..start + length])
    });
    let is_word = |word: &str| word.starts_with(|letter: char| letter.is_alphabetic() || "./~*".contains(letter));
    // These words are valid values, so the error is about something else on the line.
    let is_known = |word: &str| ["true", "false", "nan", "inf"].contains(&word);
    let is_there = |start: usize, word: &str| start <= span.end && span.start <= start + word.len();
    let mut found = words.filter(|(start, word)| is_word(word) && !is_known(word) && is_there(*start, word));
    found.next().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinity_are_found_everywhere() {
        let cases = [
            (
                "[[stage]]\nkind = \"prune\"\nsparsity = nan",
                "stage 1 (prune): sparsity: found nan, expected a number from 0",
            ),
            ("[[stage]]\nkind = \"x\"\nstudent = { a = -inf }", "stage 1 (x): student.a: found -inf"),
            (
                "[base]\n[matrix]\nstage.0.momentum = [0.5, inf]",
                "matrix.stage.0.momentum.1: found inf, expected a number",
            ),
            ("[[job]]\n[[job]]\nset.\"stage.0.clip\" = +inf", "job 2: set.stage.0.clip: found +inf"),
            ("[[job]]\n[[job.stage]]\nkind = \"p\"\nsparsity = nan", "job 1: stage 1 (p): sparsity: found nan"),
            ("what = -nan", "what: found -nan, expected a finite number"),
        ];
        for (text, expected) in cases {
            let (start, found) = not_finite(text).unwrap();
            assert!(found.starts_with(expected), "{found}");
            assert!(text[start..].starts_with(['n', 'i', '-', '+']), "{}", &text[start..]);
        }
        assert!(not_finite("a = 1.5\nb = [1, 2e300]\nc = \"nan\"").is_none() && not_finite("a = ").is_none());
    }

    #[test]
    fn words_without_quotes_are_recognized() {
        let at = |text: &'static str, word: &str| {
            let start = text.find(word).unwrap();
            unquoted(text, start..start + word.len())
        };
        assert_eq!(at("scheme = int8", "int8"), Some("int8"));
        assert_eq!(at("path = ../models/a b", ".."), Some("../models/a"));
        assert_eq!(at("roles = [linear, conv]", "conv"), Some("conv"));
        assert_eq!(at("strict = true x", "true"), None);
        assert_eq!(at("a = 1\nscheme = int8 # eight", "int8 #"), Some("int8"));
        assert_eq!((at("a b = 1", "b"), at("a = \"x\" y", "y"), at("é = ö", "ö")), (None, None, Some("ö")));
    }
}
