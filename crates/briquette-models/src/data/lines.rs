//! Sentences, one a line.

use super::{empty, read_text};
use briquette_core::Result;
use std::path::Path;

/// Sentences, and which pairs of them people judged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sentences {
    /// The sentences.
    pub texts: Vec<String>,
    /// Places of two sentences, and how alike people found them.
    pub pairs: Vec<(usize, usize, f64)>,
}

impl Sentences {
    /// Reads a text file; lines of white space alone are none.
    ///
    /// # Errors
    /// Input where there is none, or no UTF-8; Io.
    pub fn read_lines(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let texts: Vec<String> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
        if texts.is_empty() {
            return Err(empty(path, "line of text"));
        }
        Ok(Self { texts, pairs: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_a_byte_order_mark_are_no_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.txt");
        std::fs::write(&path, "\u{feff}one\r\n\n  \n two \n").unwrap();
        assert_eq!(Sentences::read_lines(&path).unwrap().texts, ["one", "two"]);
        std::fs::write(&path, "\n \n").unwrap();
        assert!(Sentences::read_lines(&path).unwrap_err().message.ends_with("nothing to evaluate"));
        std::fs::write(&path, b"ab\xff").unwrap();
        assert!(Sentences::read_lines(&path).unwrap_err().message.contains("byte 2"));
    }
}
