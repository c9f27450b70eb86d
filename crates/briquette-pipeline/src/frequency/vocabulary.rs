//! The order of a tokenizer's vocabulary, as a prior for the frequency of tokens.

use briquette_core::Result;
use briquette_formats::{Checkpoint, limits};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Added to the rank of a word: the most frequent words are about equally frequent.
const FLATTENED: f64 = 200.0;

/// The vocabulary of a tokenizer.
///
/// The prior of a token is `z = 1/(max(rank - offset, 0) + 200)`, Zipf's law. The rank is the token's id: ids follow
/// the frequency in WordPiece, the order of merges in BPE, and the probability in Unigram. `offset` is the first id that
/// is a word. Unused ids have the last rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Vocabulary {
    n_tokens: usize,
    offset: usize,
    /// The ids of tokens that no text has, sorted.
    unused: Vec<usize>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: TokenList,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenList {
    Ids(BTreeMap<String, u32>),
    Scores(Vec<(String, f64)>),
}

impl Vocabulary {
    /// Reads the vocabulary of a model's `tokenizer.json`; `None` if there is none of a known form.
    ///
    /// # Errors
    /// Io: the file cannot be read.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let bytes = checkpoint.model_dir().read(Path::new("tokenizer.json"), limits::MAX_JSON_BYTES)?;
        Ok(bytes.and_then(|bytes| Self::parse(&bytes)))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let file: TokenizerFile = serde_json::from_slice(bytes).ok()?;
        let tokens: Vec<(String, usize)> = match file.model.vocab {
            TokenList::Ids(ids) => ids.into_iter().map(|(token, id)| (token, id as usize)).collect(),
            TokenList::Scores(scores) => scores.into_iter().enumerate().map(|(id, (token, _))| (token, id)).collect(),
        };
        let n_tokens = tokens.iter().map(|(_, id)| id + 1).max()?;
        let words = tokens.iter().filter(|(token, _)| is_word(token)).map(|(_, id)| *id);
        let mut unused: Vec<usize> = tokens.iter().filter(|(token, _)| is_unused(token)).map(|(_, id)| *id).collect();
        unused.sort_unstable();
        Some(Self { n_tokens, offset: words.min().unwrap_or(0), unused })
    }

    /// Returns the number of ids.
    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Returns the prior of the first `n` ids, which sums to 1. Ids beyond the vocabulary are unused.
    pub(super) fn prior(&self, n: usize) -> Vec<f64> {
        let is_unused = |id: usize| id >= self.n_tokens || self.unused.binary_search(&id).is_ok();
        let rank = |id: usize| if is_unused(id) { n } else { id };
        let weight = |id: usize| 1.0 / (rank(id).saturating_sub(self.offset) as f64 + FLATTENED);
        let sum: f64 = (0..n).map(weight).sum();
        (0..n).map(|id| weight(id) / sum).collect()
    }
}

/// Returns whether a token begins with two letters, after a space: it is no special token or single character.
fn is_word(token: &str) -> bool {
    token.trim_start_matches(['▁', 'Ġ']).chars().take_while(|c| c.is_alphabetic()).count() >= 2
}

/// Returns whether a token is reserved, so that no text has it.
fn is_unused(token: &str) -> bool {
    ["[unused", "<unused", "<reserved", "<|reserved"].iter().any(|start| token.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_ranked_from_the_first_and_unused_ids_are_last() {
        let text = r###"{"model": {"type": "WordPiece", "vocab": {"[PAD]": 0, "[unused0]": 1, "a": 2, "##a": 3, "the": 4, "of": 5}}}"###;
        let found = Vocabulary::parse(text.as_bytes()).unwrap();
        assert_eq!(found, Vocabulary { n_tokens: 6, offset: 4, unused: vec![1] });
        let prior = found.prior(8);
        assert!((prior.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!((prior[0], prior[2], prior[3]), (prior[4], prior[4], prior[4]));
        assert!((prior[5] / prior[4] - 200.0 / 201.0).abs() < 1e-12);
        assert!((prior[1] / prior[4] - 200.0 / 204.0).abs() < 1e-12);
        assert_eq!((prior[6], prior[7]), (prior[1], prior[1]));
    }

    #[test]
    fn other_lists_are_known_and_damaged_files_have_no_vocabulary() {
        let unigram = r#"{"model": {"vocab": [["<s>", 0.0], ["▁", -2.0], ["the", -3.5]]}}"#;
        let found = Vocabulary::parse(unigram.as_bytes()).unwrap();
        assert_eq!((found.n_tokens(), found.offset), (3, 2));
        for text in ["", "{}", r#"{"model": {}}"#, r#"{"model": {"vocab": {}}}"#, r#"{"model": {"vocab": {"a": -1}}}"#]
        {
            assert_eq!(Vocabulary::parse(text.as_bytes()), None, "{text}");
        }
    }
}
