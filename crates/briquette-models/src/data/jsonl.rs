//! JSON lines with sentences, or with pairs of sentences and similarity scores.

use super::{Sentences, TextLabel, empty, read_text};
use briquette_core::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

const EXPECTED: &str = "expected {\"text\": ..}, {\"sentence1\": .., \"sentence2\": .., \"score\": ..} or a string";

/// Keys for the first sentence in common data sets.
const FIRST: [&str; 3] = ["sentence1", "sentence_1", "text1"];
const SECOND: [&str; 3] = ["sentence2", "sentence_2", "text2"];
const SCORE: [&str; 3] = ["score", "label", "similarity_score"];
const TEXT: [&str; 2] = ["text", "sentence"];
const LABEL: &str = "label";

/// A parsed line.
enum JsonlRecord {
    Pair([String; 2], Option<f64>, Option<TextLabel>),
    One(String, Option<TextLabel>),
}

type Fields = Map<String, Value>;

impl JsonlRecord {
    /// Ignores unknown keys, which data sets often have. The error has the value found and the expected form.
    fn parse(line: &str) -> Result<Self, String> {
        let value = serde_json::from_str(line)
            .map_err(|source| format!("found invalid JSON at column {}, {EXPECTED}", source.column()))?;
        let fields: Fields = match value {
            Value::String(text) => return Ok(Self::One(text, None)),
            Value::Object(fields) => fields,
            other => return Err(format!("found {}, {EXPECTED}", shown(&other))),
        };
        if let (Some(first), Some(second)) = (one_of(&fields, &FIRST)?, one_of(&fields, &SECOND)?) {
            let label = fields.get(LABEL).and_then(label);
            let is_name = matches!(label, Some(TextLabel::Name(_)));
            let score = one_of(&fields, &SCORE)?.filter(|_| !is_name).map(number).transpose()?.flatten();
            return Ok(Self::Pair([text(first)?, text(second)?], score, label));
        }
        match one_of(&fields, &TEXT)? {
            Some(field) => Ok(Self::One(text(field)?, fields.get(LABEL).and_then(label))),
            None => {
                let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
                Err(format!("found the keys {keys:?}, {EXPECTED}"))
            }
        }
    }
}

/// Returns the field with one of these names, and its name.
fn one_of<'a>(fields: &'a Fields, names: &[&'static str]) -> Result<Option<(&'static str, &'a Value)>, String> {
    let mut found = names.iter().filter_map(|name| Some((*name, fields.get(*name)?)));
    match (found.next(), found.next()) {
        (Some((one, _)), Some((other, _))) => Err(format!("found both {one:?} and {other:?}, expected one of them")),
        (first, _) => Ok(first),
    }
}

fn text((name, value): (&str, &Value)) -> Result<String, String> {
    let text = value.as_str().map(String::from);
    text.ok_or_else(|| format!("{name:?} is {}, expected a string", shown(value)))
}

/// Returns `None` for null: some pairs of a data set may have no score.
fn number((name, value): (&str, &Value)) -> Result<Option<f64>, String> {
    match value {
        Value::Null => Ok(None),
        _ => value.as_f64().map(Some).ok_or_else(|| format!("{name:?} is {}, expected a number", shown(value))),
    }
}

/// Returns the class of a text. Other values are ignored, since most models have no classes.
fn label(value: &Value) -> Option<TextLabel> {
    let class = value.as_u64().and_then(|class| usize::try_from(class).ok()).map(TextLabel::Class);
    class.or_else(|| value.as_str().map(|name| TextLabel::Name(name.into())))
}

/// Returns the beginning of a value as JSON.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{} ..", &text[..at]),
        None => text,
    }
}

impl Sentences {
    /// Reads JSON lines: `{"text": ..}`, `{"sentence1": .., "sentence2": .., "score": ..}`, or plain strings.
    ///
    /// A text or a pair may have a `label`: the number or the name of its class. The number of a pair may also be a score.
    ///
    /// # Errors
    /// - Input, with line number and value: a line has another form
    /// - Io: the file cannot be read
    pub fn read_jsonl(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let mut found = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = |what: String| Error::input(what).at(format_args!("{}:{}", path.display(), number + 1));
            found.push(JsonlRecord::parse(line).map_err(bad)?);
        }
        if found.labels.len() + found.pair_starts.len() < found.texts.len() {
            found.labels.clear();
        }
        if found.texts.is_empty() { Err(empty(path, "line")) } else { Ok(found) }
    }

    fn push(&mut self, line: JsonlRecord) {
        match line {
            JsonlRecord::One(text, label) => {
                self.texts.push(text);
                self.labels.extend(label);
            }
            JsonlRecord::Pair(both, score, label) => {
                let at = self.texts.len();
                self.pair_starts.push(at);
                self.texts.extend(both);
                self.labels.extend(label);
                self.pairs.extend(score.map(|score| (at, at + 1, score)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_texts_or_pairs_and_errors_have_line_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs.jsonl");
        std::fs::write(
            &path,
            "{\"text\": \"a\"}\n\n\"b\"\n{\"sentence1\": \"c\", \"sentence2\": \"d\", \"score\": 3.5, \"split\": \"dev\"}\n",
        )
        .unwrap();
        let found = Sentences::read_jsonl(&path).unwrap();
        assert_eq!((found.texts.join(" "), found.pairs.clone()), ("a b c d".into(), vec![(2, 3, 3.5)]));
        assert!(found.labels.is_empty());
        let read = |reads_pairs: bool| -> Vec<(String, Option<String>)> {
            found.items(reads_pairs).into_iter().map(|item| (item.first, item.second)).collect()
        };
        let both = [("a".to_string(), None), ("b".to_string(), None), ("c".to_string(), Some("d".to_string()))];
        assert_eq!((read(true), read(false).len()), (both.to_vec(), 4));
        std::fs::write(&path, "\"a\"\n{\"texts\": 1}\n").unwrap();
        let error = Sentences::read_jsonl(&path).unwrap_err();
        assert!(error.message.contains("pairs.jsonl:2: found the keys [\"texts\"], expected {"), "{error}");
    }

    #[test]
    fn labels_are_numbers_or_names_of_classes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.jsonl");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Sentences::read_jsonl(&path).unwrap()
        };
        let names = ["no".to_string(), "yes".to_string()];
        let found = read("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": \"no\"}\n");
        assert_eq!(found.classes(&names, 2).unwrap(), Some(vec![1, 0]));
        let error = found.classes(&[], 2).unwrap_err().to_string();
        assert!(error.contains("label \"no\" is not a class of the model, expected the number of a class"), "{error}");
        assert!(found.classes(&names, 1).unwrap_err().to_string().contains("label 1 is out of range"));
        let pairs = read("{\"text1\": \"a\", \"text2\": \"b\", \"label\": \"yes\"}\n{\"text\": \"c\", \"label\": 0}\n");
        assert_eq!((pairs.classes(&names, 2).unwrap(), pairs.pairs.len()), (Some(vec![1, 0]), 0));
        let some = read("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": [2]}\n\"c\"\n");
        assert_eq!((some.classes(&names, 2).unwrap(), some.texts.len()), (None, 3));
    }

    #[test]
    fn errors_report_the_value_found() {
        let pair = |rest: &str| format!("{{\"sentence1\": \"a\", \"text2\": \"b\"{rest}}}");
        let cases = [
            (pair(", \"score\": \"4\""), "\"score\" is \"4\", expected a number"),
            (pair(", \"score\": 4, \"label\": 4"), "found both \"score\" and \"label\", expected one"),
            (pair(", \"label\": [1]"), "\"label\" is [1], expected a number"),
            ("{\"text\": 5}".into(), "\"text\" is 5, expected a string"),
            ("[1, 2]".into(), "found [1,2], expected {"),
            (format!("{{\"sentence\": [\"{}\"]}}", "é".repeat(99)), "é .., expected a string"),
            ("{\"text\": ".into(), "found invalid JSON at column 9, expected {"),
        ];
        for (line, message) in cases {
            let found = JsonlRecord::parse(&line).err().unwrap();
            assert!(found.contains(message), "{line}: {found}");
        }
        for (line, score) in [(pair(""), None), (pair(", \"score\": null"), None), (pair(", \"label\": 2"), Some(2.0))]
        {
            assert!(
                matches!(JsonlRecord::parse(&line), Ok(JsonlRecord::Pair(_, found, _)) if found == score),
                "{line}"
            );
        }
    }
}
