//! Inputs of models.

use crate::config::Folder;
use crate::data::ImageInput;
use crate::text::{self, Pooling, TextTokenizer};
use briquette_core::{Error, Remedy, Result};
use std::path::PathBuf;

/// The input of a model.
#[derive(Debug, Clone)]
pub enum Input {
    /// Images, and their preparation.
    Images(ImageInput),
    /// Text.
    Text {
        /// Directory of the model.
        directory: PathBuf,
        /// Tokenizer, if the directory has one.
        tokenizer: Option<TextTokenizer>,
        /// Pooling of an encoder's hidden states; unused by decoders.
        pooling: Pooling,
        /// Largest supported length.
        longest: Longest,
    },
}

/// The largest supported length of a text, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longest {
    /// Number of positions of the model.
    pub max_positions: usize,
    /// Sliding window of the attention. Longer texts are refused, since windowed attention is not implemented
    /// here.
    pub window: Option<usize>,
}

impl Longest {
    /// Returns the largest length in tokens.
    pub fn n_tokens(&self) -> usize {
        self.window.map_or(self.max_positions, |window| window.min(self.max_positions))
    }

    /// Refuses a `max_length` that exceeds the limit.
    ///
    /// # Errors
    /// Config, with the reason of the limit.
    pub(crate) fn check(&self, max_length: usize) -> Result<()> {
        let n = self.max_positions;
        let message = match self.window {
            _ if max_length <= self.n_tokens() => return Ok(()),
            Some(window) if max_length <= n => format!(
                "attention windows of {window} tokens are supported only for texts within one window; use at most {window}"
            ),
            _ => format!("the model has {n} positions; use at most {}", self.n_tokens()),
        };
        let key = "data.max_length";
        Err(Error::config(format!("found {max_length}: {message}")).at(key).with_remedy(Remedy::SetKey(key)))
    }
}

impl Input {
    /// Returns the tokenizer of a model that takes text.
    ///
    /// # Errors
    /// - Input: the directory has no tokenizer
    /// - Config: the model takes images
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        match self {
            Self::Text { tokenizer: Some(tokenizer), .. } => Ok(tokenizer),
            Self::Text { directory, .. } => {
                let path = directory.join("tokenizer.json");
                Err(Error::input("it is missing; put it next to the model's weights").at(path.display()))
            }
            Self::Images(_) => Err(Error::config("the model takes images, found text")),
        }
    }

    /// Truncates texts to `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config: the model has fewer positions, or there is no room for text. See [`tokenizer`](Self::tokenizer)
    /// for other errors.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.tokenizer()?;
        if let Self::Text { tokenizer: Some(tokenizer), longest, .. } = self {
            longest.check(max_length)?;
            tokenizer.set_max_length(max_length)?;
        }
        Ok(())
    }

    /// Returns the text input of a network with this vocabulary; `usual` is the default length.
    pub(crate) fn text(folder: &Folder, vocab_size: usize, longest: Longest, usual: usize) -> Result<Self> {
        let max_length = text::max_seq_length(folder)?.unwrap_or(usual).min(longest.n_tokens());
        let mut tokenizer = TextTokenizer::read(folder, vocab_size, max_length)?;
        if let Some(tokenizer) = &mut tokenizer {
            tokenizer.set_max_length(max_length).map_err(|error| error.at(folder.0.path().display()))?;
        }
        let directory = folder.0.path().to_path_buf();
        Ok(Self::Text { directory, tokenizer, pooling: Pooling::read(folder)?, longest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_limits_are_reported_by_their_name() {
        let (plain, sliding) = (None, Some(8));
        let said = |window, n| Longest { max_positions: 32, window }.check(n).unwrap_err().to_string();
        assert!(said(plain, 33).contains("found 33: the model has 32 positions; use at most 32"));
        assert!(
            said(sliding, 9).contains("attention windows of 8 tokens are supported only for texts"),
            "{}",
            said(sliding, 9)
        );
        assert!(said(sliding, 33).contains("the model has 32 positions; use at most 8"));
        assert!(Longest { max_positions: 32, window: sliding }.check(8).is_ok());
        assert_eq!(Longest { max_positions: 4, window: sliding }.n_tokens(), 4);
    }
}
