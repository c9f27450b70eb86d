//! Pairs of a source and a target for encoder-decoders, as JSON lines.

use super::{empty, read_text};
use briquette_core::{Error, Result};
use serde::Deserialize;
use std::path::{Path, PathBuf};

const EXPECTED: &str =
    "expected {\"source\": \"..\", \"target\": \"..\"} or {\"audio\": \"FILE.wav\", \"target\": \"..\"}";

/// Sources with their targets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairs {
    /// The sources.
    pub sources: Vec<PairSource>,
    /// The text that a model should write for each source.
    pub targets: Vec<String>,
}

/// The source of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairSource {
    /// A text.
    Text(String),
    /// A WAV file.
    Sound(PathBuf),
}

/// A line. Keys that data sets have beside these are ignored.
#[derive(Deserialize)]
struct PairRecord {
    source: Option<String>,
    audio: Option<PathBuf>,
    target: String,
}

impl Pairs {
    /// Reads JSON lines: `{"source": .., "target": ..}` for texts, `{"audio": .., "target": ..}` for sounds.
    ///
    /// A relative path of a sound is relative to the file of pairs.
    ///
    /// # Errors
    /// - Input, with the line number: a line has another form, or there is none.
    /// - Io: the file cannot be read.
    pub fn read_jsonl(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut found = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = format!("{}:{}", path.display(), number + 1);
            let record: PairRecord = serde_json::from_str(line).map_err(|error| {
                // The end of serde's message has the place within the line.
                Error::input(format!("found another form ({error}), {EXPECTED}")).at(&at)
            })?;
            let source = match (record.source, record.audio) {
                (Some(text), None) => PairSource::Text(text),
                (None, Some(file)) => PairSource::Sound(folder.join(file)),
                (Some(_), Some(_)) => return Err(Error::input(format!("found source and audio, {EXPECTED}")).at(at)),
                (None, None) => return Err(Error::input(format!("found no source, {EXPECTED}")).at(at)),
            };
            found.sources.push(source);
            found.targets.push(record.target);
        }
        if found.sources.is_empty() { Err(empty(path, "pair")) } else { Ok(found) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Pairs> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs.jsonl");
        std::fs::write(&path, text).unwrap();
        let mut found = Pairs::read_jsonl(&path)?;
        for source in &mut found.sources {
            if let PairSource::Sound(file) = source {
                *file = file.strip_prefix(dir.path()).unwrap().into();
            }
        }
        Ok(found)
    }

    #[test]
    fn sources_are_texts_or_sounds() {
        let found =
            read("{\"source\": \"a\", \"target\": \"b\", \"id\": 3}\n\n{\"audio\": \"x/c.wav\", \"target\": \"d\"}\n");
        let sources = vec![PairSource::Text("a".into()), PairSource::Sound("x/c.wav".into())];
        assert_eq!(found.unwrap(), Pairs { sources, targets: vec!["b".into(), "d".into()] });
    }

    #[test]
    fn lines_of_another_form_are_named() {
        for (line, found) in [
            ("{\"target\": \"b\"}", ":2: found no source, expected {\"source\""),
            ("{\"source\": \"a\"}", "missing field `target`"),
            ("{\"source\": 3, \"target\": \"b\"}", "expected a string"),
            ("{\"source\": \"a\", \"audio\": \"b\", \"target\": \"c\"}", "found source and audio"),
            ("\"a\"", ":2: found another form"),
        ] {
            let error = read(&format!("{{\"source\": \"a\", \"target\": \"b\"}}\n{line}\n")).unwrap_err();
            assert!(error.message.contains(found) && error.exit_code() == 4, "{error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
        assert!(read("\n \n").unwrap_err().message.contains("found no pair"));
    }
}
