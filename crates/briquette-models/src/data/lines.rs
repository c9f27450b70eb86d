//! Text files with one sentence per line.

use super::{empty, out_of_range, read_prose};
use briquette_core::{Error, Result};
use std::path::Path;

/// Sentences and pairs of sentences, with classes, or with scores of some pairs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sentences {
    /// The sentences; the two of a pair follow each other.
    pub texts: Vec<String>,
    /// The class of every pair and every other sentence; empty if some have none.
    pub labels: Vec<TextLabel>,
    /// The index of the first sentence of each pair, ascending.
    pub pair_starts: Vec<usize>,
    /// Indices of two sentences and their score.
    pub pairs: Vec<(usize, usize, f64)>,
}

/// A text, or two texts that a classifier reads together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextItem {
    /// The text.
    pub first: String,
    /// The second text of a pair.
    pub second: Option<String>,
}

impl TextItem {
    /// Returns the bytes of both texts.
    pub fn n_bytes(&self) -> usize {
        self.first.len() + self.second.as_ref().map_or(0, String::len)
    }
}

impl Sentences {
    /// Reads a text file; blank lines are skipped.
    ///
    /// # Errors
    /// - Input: there is no sentence, the file is not UTF-8, or it is JSON
    /// - Io: the file cannot be read
    pub fn read_lines(path: &Path) -> Result<Self> {
        let text = read_prose(path)?;
        let texts: Vec<String> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
        if texts.is_empty() {
            return Err(empty(path, "line of text"));
        }
        Ok(Self { texts, ..Self::default() })
    }

    /// Returns what a model reads at once: every sentence, or pairs together if it `reads_pairs`.
    pub fn items(&self, reads_pairs: bool) -> Vec<TextItem> {
        let mut starts = self.pair_starts.iter().filter(|_| reads_pairs).peekable();
        let (mut items, mut at) = (Vec::new(), 0);
        while let Some(first) = self.texts.get(at) {
            let second = starts.next_if(|&&start| start == at).and_then(|start| self.texts.get(start + 1)).cloned();
            at += if second.is_some() { 2 } else { 1 };
            items.push(TextItem { first: first.clone(), second });
        }
        items
    }

    /// Returns the index of every item's class; `None` without labels. `names` are the names of the model's classes.
    ///
    /// # Errors
    /// Input: a label is not a class of the model.
    pub fn classes(&self, names: &[String], n_classes: usize) -> Result<Option<Vec<usize>>> {
        let class = |label: &TextLabel| match label {
            TextLabel::Class(class) if *class < n_classes => Ok(*class),
            TextLabel::Class(class) => Err(out_of_range(&format!("label {class}"), n_classes)),
            TextLabel::Name(name) => names.iter().position(|known| known == name).ok_or_else(|| {
                let known = if names.is_empty() { "the number of a class".into() } else { names.join(", ") };
                Error::input(format!("label {name:?} is not a class of the model, expected {known}"))
            }),
        };
        let classes = self.labels.iter().map(class).collect::<Result<Vec<usize>>>()?;
        Ok((!classes.is_empty()).then_some(classes))
    }
}

/// The class of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextLabel {
    /// Its index.
    Class(usize),
    /// Its name, as in `id2label` of config.json.
    Name(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_byte_order_marks_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.txt");
        std::fs::write(&path, "\u{feff}one\r\n\n  \n two \n").unwrap();
        assert_eq!(Sentences::read_lines(&path).unwrap().texts, ["one", "two"]);
        std::fs::write(&path, "\n \n").unwrap();
        assert!(Sentences::read_lines(&path).unwrap_err().message.ends_with("nothing to evaluate"));
        for (other, found) in
            [("{\n \"a\": 1\n}\n", "a JSON document"), ("[1]", "a JSON document"), ("a\0b", "a NUL at byte 1")]
        {
            std::fs::write(&path, other).unwrap();
            let error = Sentences::read_lines(&path).unwrap_err().message;
            assert!(error.contains(found) && error.contains("expected text"), "{error}");
        }
        std::fs::write(&path, "[1] a note\n{braces}\n").unwrap();
        assert_eq!(Sentences::read_lines(&path).unwrap().texts.len(), 2);
        std::fs::write(&path, b"ab\xff").unwrap();
        assert!(Sentences::read_lines(&path).unwrap_err().message.contains("byte 2"));
    }
}
