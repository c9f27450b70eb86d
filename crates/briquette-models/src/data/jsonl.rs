//! JSON lines: sentences, or pairs of them with how alike people found them.

use super::{Sentences, empty, read_text};
use briquette_core::{Error, Result};
use serde::Deserialize;
use std::path::Path;

/// One line. Keys that are not known are left aside: data sets carry many.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Pair {
        #[serde(alias = "sentence_1", alias = "text1")]
        sentence1: String,
        #[serde(alias = "sentence_2", alias = "text2")]
        sentence2: String,
        #[serde(default, alias = "label", alias = "similarity_score")]
        score: Option<f64>,
    },
    One {
        #[serde(alias = "sentence")]
        text: String,
    },
    Bare(String),
}

impl Sentences {
    /// Reads JSON lines: `{"text": ..}`, `{"sentence1": .., "sentence2": .., "score": ..}`, or a bare string each.
    ///
    /// # Errors
    /// Input, naming the line, where one is none of these or its score is not finite; Io.
    pub fn read_jsonl(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let mut found = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let bad = |what: &str| Error::input(what).at(format_args!("{}:{}", path.display(), number + 1));
            let expected = "expected {\"text\": ..}, {\"sentence1\": .., \"sentence2\": .., \"score\": ..} or a string";
            found.push(serde_json::from_str(line).map_err(|_| bad(expected))?);
        }
        if found.texts.is_empty() { Err(empty(path, "line")) } else { Ok(found) }
    }

    fn push(&mut self, line: Line) {
        match line {
            Line::One { text } | Line::Bare(text) => self.texts.push(text),
            Line::Pair { sentence1, sentence2, score } => {
                let at = self.texts.len();
                self.texts.extend([sentence1, sentence2]);
                self.pairs.extend(score.map(|score| (at, at + 1, score)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_texts_or_pairs_and_an_error_names_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs.jsonl");
        std::fs::write(
            &path,
            "{\"text\": \"a\"}\n\n\"b\"\n{\"sentence1\": \"c\", \"sentence2\": \"d\", \"score\": 3.5, \"split\": \"dev\"}\n",
        )
        .unwrap();
        let found = Sentences::read_jsonl(&path).unwrap();
        assert_eq!((found.texts.join(" "), found.pairs), ("a b c d".into(), vec![(2, 3, 3.5)]));
        std::fs::write(&path, "\"a\"\n{\"texts\": 1}\n").unwrap();
        let error = Sentences::read_jsonl(&path).unwrap_err();
        assert!(error.message.contains("pairs.jsonl:2: expected"), "{error}");
    }
}
