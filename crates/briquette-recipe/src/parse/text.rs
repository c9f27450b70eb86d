//! Parses the text of recipes; errors have the line and a suggestion.

use crate::parse::numbers;
use briquette_core::{Error, Result};
use serde::de::DeserializeOwned;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Largest recipe file in bytes. The patterns of a larger one could take gigabytes.
const MAX_BYTES: u64 = 256 << 10;

/// Reads and parses a TOML file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse(&read_text(path)?, &path.display().to_string())
}

/// Reads a TOML file as text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let file = briquette_formats::InputFile::open(path).map_err(as_config)?;
    let bytes = file.read_all(MAX_BYTES).map_err(as_config)?;
    String::from_utf8(bytes)
        .map_err(|_| Error::config("found a file that is not text, expected TOML").at(path.display()))
}

/// Converts an error about the recipe's file: invalid input is a configuration error here.
fn as_config(error: Error) -> Error {
    match error.is_bad_input() {
        true => Error { source: error.source, ..Error::config(error.message) },
        false => error,
    }
}

/// Parses TOML; `name` is the file name in errors.
///
/// # Errors
/// Config: the TOML is invalid; the message has the line, and the most similar key for an unknown one.
pub fn parse<T: DeserializeOwned>(text: &str, name: &str) -> Result<T> {
    let at = |start: usize, message: String| Error::config(message).at(format_args!("{name}:{}", line_at(text, start)));
    if let Some((start, message)) = numbers::not_finite(text) {
        return Err(at(start, message));
    }
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        if error.message().starts_with("duplicate key") {
            let key = text.get(span.clone()).unwrap_or_default();
            return at(span.start, format!("found the key {key} twice in one table; remove one"));
        }
        let quotes = |word: &str| format!("found {word}, expected a value; put strings in quotes: \"{word}\"");
        let known = numbers::out_of_range(text, span.clone());
        let known = known.or_else(|| numbers::unquoted(text, span.clone()).map(quotes));
        at(span.start, known.unwrap_or_else(|| explain(error.message())))
    })
}

/// Prefixes an error with the file, and with the line of the key at the start of the error.
///
/// For example, `stage 1 (prune): sparsity: found 7` gets the line of that stage's sparsity.
pub(crate) fn locate(error: Error, text: &str, path: &Path) -> Error {
    let mut number = String::new();
    let mut steps: Vec<&str> = Vec::new();
    for word in error.message.split(": ") {
        match word.strip_prefix("stage ").and_then(|rest| rest.split_once(' ')) {
            Some((stage, _)) => {
                number = stage.parse::<usize>().map_or(String::new(), |stage| stage.saturating_sub(1).to_string());
                steps.push("stage");
            }
            None if word.contains(' ') => break,
            None => steps.extend(word.split('.')),
        }
    }
    if !number.is_empty() {
        steps.insert(1, &number);
    }
    let line = (1..=steps.len()).rev().find_map(|n| line_of(text, &steps[..n]));
    match line {
        Some(line) => error.at(format_args!("{}:{line}", path.display())),
        None => error.at(path.display()),
    }
}

/// Returns the line number of a byte in a text, from 1.
fn line_at(text: &str, start: usize) -> usize {
    1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count()
}

/// Returns the line of a key, found by the keys and list indices that lead to it.
pub(crate) fn line_of(text: &str, steps: &[&str]) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let (mut start, mut value) = (0, DeValue::Table(table.into_inner()));
    for step in steps {
        (start, value) = match value {
            DeValue::Table(table) => {
                let (key, found) = table.into_iter().find(|(key, _)| key.get_ref() == step)?;
                (key.span().start, found.into_inner())
            }
            DeValue::Array(items) => {
                let item = items.into_iter().nth(step.parse().ok()?)?;
                (item.span().start, item.into_inner())
            }
            _ => return None,
        };
    }
    Some(line_at(text, start))
}

/// Adds a suggestion to serde's ``unknown field `a`, expected one of `b`, `c` ``.
pub(crate) fn explain(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.as_slice() {
        [found, known @ ..] if message.starts_with("unknown field") => {
            let hint = briquette_core::pattern::nearest(found, known.iter().copied());
            let hint = hint.map_or(String::new(), |name| format!("; did you mean {name:?}?"));
            format!("unknown key {found:?}, expected one of {}{hint}", known.join(", "))
        }
        [found, known @ ..] if message.starts_with("unknown variant") => {
            let hint = briquette_core::pattern::nearest(found, known.iter().copied());
            let hint = hint.map_or(String::new(), |name| format!("; did you mean {name:?}?"));
            format!("found {found:?}, expected one of {}{hint}", known.join(", "))
        }
        _ => in_plain_words(message),
    }
}

/// Replaces Rust types in a serde error by plain words.
fn in_plain_words(message: &str) -> String {
    let words = [
        (" as i128", ""),
        (" as u128", ""),
        ("expected f64", "expected a number"),
        ("expected f32", "expected a number"),
        ("expected u8", "expected a whole number from 0 to 255"),
        ("expected u64", "expected a whole number"),
        ("expected usize", "expected a whole number"),
        ("expected any value", "expected a number of at most 64 bits"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
        ("expected a boolean", "expected true or false"),
        ("expected path string", "expected a path"),
        ("missing field", "missing key"),
    ];
    let message = words.iter().fold(message.to_string(), |message, (rust, plain)| message.replace(rust, plain));
    match message.split_once("expected struct Raw") {
        Some((before, name)) => {
            let rest = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            format!("{before}expected a table{rest}")
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Recipe, raw::RawRecipe};

    fn error_of(stage: &str) -> String {
        let text = format!("[model]\npath = \"m\"\n[output]\npath = \"o\"\n[[stage]]\n{stage}");
        let parsed = parse::<RawRecipe>(&text, "r.toml").and_then(|raw| Recipe::from_raw(raw, Path::new("")));
        parsed.unwrap_err().to_string()
    }

    #[test]
    fn invalid_values_have_the_line_of_their_key() {
        let head = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n";
        let cases = [
            (
                format!("{head}[[stage]]\nkind = \"prune\"\nsparsity = 1.0"),
                "r.toml:7: stage 1 (prune): sparsity: found 1, expected a number from 0 to below 1",
            ),
            (format!("{head}[[stage]]\nkind = \"prune\""), "r.toml:5: stage 1 (prune): sparsity: missing"),
            (
                format!("{head}[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\nrange = \"x\""),
                "r.toml:8: stage 1 (quantize): range: found \"x\"",
            ),
            (format!("{head}format = \"x\""), "r.toml:5: output.format: found \"x\""),
            (format!("{head}[memory]\nlimit = \"x\""), "r.toml:6: memory.limit: found \"x\""),
            ("[model]\npath = \"m\"".into(), "r.toml: output.path: missing"),
        ];
        for (text, expected) in cases {
            let path = Path::new("r.toml");
            let raw = parse::<RawRecipe>(&text, "r.toml").unwrap();
            let error = locate(Recipe::from_raw(raw, Path::new("")).unwrap_err(), &text, path).to_string();
            assert!(error.starts_with(expected), "{error:?} is not {expected:?}");
        }
    }

    #[test]
    fn an_unknown_key_lists_the_keys_of_its_kind_of_stage() {
        let listed = error_of("kind = \"prune\"\nsparsty = 0.4");
        for key in ["kind", "sparsity", "pattern", "scope", "method"] {
            assert!(listed.contains(key), "{listed}");
        }
        assert!(listed.contains("did you mean \"sparsity\"?") && !listed.contains("scheme"), "{listed}");
        let other = error_of("kind = \"cast\"\nscheme = \"int8\"");
        assert!(other.contains("use one of kind, dtype, exclude, include, roles"), "{other}");
        let kind_last = error_of("sparsty = 0.4\nkind = \"prune\"");
        assert!(kind_last.contains("did you mean \"sparsity\"?"), "{kind_last}");
    }

    #[test]
    fn errors_are_one_line_with_a_remedy() {
        let cases = [
            ("kind = \"prune\"\nspasity = 0.4", "r.toml:7: unknown key \"spasity\""),
            ("kind = \"prune\"\nspasity = 0.4", "did you mean \"sparsity\"?"),
            ("kind = \"prnue\"", "did you mean \"prune\"?"),
            ("kind = \"prune\"\nsparsity = \"a\"", "r.toml:7: invalid type"),
            ("kind = \"prune\"\nsparsity = 1.5", "sparsity: found 1.5"),
            ("kind = \"prune\"\nsparsity = \"a\"", "expected a number"),
            (
                "kind = \"quantize\"\nbits = 300",
                "stage 1 (quantize): bits: found 300, expected a whole number from 2 to 8",
            ),
            ("kind = \"quantize\"\nbits = -1", "r.toml:7: stage 1 (quantize): bits: found -1, expected"),
            ("kind = \"quantize\"\nbits = 4\ngroup = -1", "r.toml:8: stage 1 (quantize): group: found -1, expected"),
            ("kind = \"distill\"\nepochs = 99999999999999999999", "epochs: found 99999999999999999999, expected"),
            ("kind = \"prune\"\nsparsity = -inf", "r.toml:7: stage 1 (prune): sparsity: found -inf, expected a number"),
            (
                "kind = \"quantize\"\nscheme = int8",
                "r.toml:7: found int8, expected a value; put strings in quotes: \"int8\"",
            ),
            ("kind = \"prune\"\nroles = [linear, conv]", "put strings in quotes: \"linear\""),
            ("kind = \"distill\"\nloss = [{ kind = logits }]", "put strings in quotes: \"logits\""),
            ("kind = \"distill\"\nteacher = ../models/a", "put strings in quotes: \"../models/a\""),
            ("kind = \"quantize\"\nbits = 4\ngroup = 1.5", "group: found 1.5, expected a whole number from 1"),
            ("kind = \"prune\"\nroles = [\"linaer\"]", "did you mean \"linear\"?"),
            ("kind = \"prune\"\nroles = \"linear\"", "expected a list"),
            ("kind = \"prune\"\noverrides = [1]", "expected a table"),
            ("kind = \"prune\"", "sparsity: missing"),
            ("kind = \"prune\"\nsparsity = 0.1\nscope = \"globl\"", "did you mean \"global\"?"),
            ("kind = \"prune\"\npattern = \"4:2\"", "expected N:M"),
            (
                "kind = \"prune\"\npattern = \"2:4\"\nsparsity = 0.5",
                "sparsity: a prune stage with a pattern has no such key",
            ),
            ("kind = \"prune\"\nsparsity = 0.5\nscheme = \"int8\"", "scheme: a prune stage has no such key"),
            ("kind = \"quantize\"", "scheme: missing"),
            ("kind = \"quantize\"\nscheme = \"int9\"", "unknown scheme \"int9\""),
            ("kind = \"quantize\"\nbits = 1", "expected a whole number from 2 to 8"),
            ("kind = \"quantize\"\nbits = 4\ngroup = 0", "group: found 0"),
            ("kind = \"quantize\"\nbits = 4\npercentile = 0.9", "percentile: a quantize stage with another range"),
            (
                "kind = \"quantize\"\nbits = 4\nrange = \"percentile\"\npercentile = 3",
                "found 3, expected a number from 0.5",
            ),
            (
                "kind = \"quantize\"\nscheme = \"int8\"\n[[stage]]\nkind = \"prune\"\nsparsity = 0.1",
                "put the prune stage first",
            ),
            ("kind = \"prune\"\nsparsity = 0.1\ninclude = [\"a[\"]", "pattern \"a[\""),
            ("kind = ", "r.toml:6:"),
        ];
        for (stage, expected) in cases {
            let found = error_of(stage);
            assert!(found.contains(expected) && !found.contains('\n'), "{stage}: {found:?} lacks {expected:?}");
        }
    }
}
