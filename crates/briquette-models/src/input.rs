//! What a model takes in.

use crate::config::Folder;
use crate::data::ImageInput;
use crate::text::{self, Pooling, TextTokenizer};
use briquette_core::{Error, Remedy, Result};
use std::path::PathBuf;

/// What a model takes in.
#[derive(Debug, Clone)]
pub enum Input {
    /// Images, prepared like this.
    Images(ImageInput),
    /// Text.
    Text {
        /// The model's directory.
        directory: PathBuf,
        /// The tokenizer, where the model's directory has one.
        tokenizer: Option<TextTokenizer>,
        /// How an encoder's hidden states become an embedding; unused by decoders.
        pooling: Pooling,
        /// The longest text that is run, in tokens.
        longest: Longest,
    },
}

/// The longest text that a model is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Longest {
    /// Positions the model has.
    pub max_positions: usize,
    /// The sliding window of its attention. Longer texts are not run: attention here has no window, and would differ.
    pub window: Option<usize>,
}

impl Longest {
    /// The longest text, in tokens.
    pub fn n_tokens(&self) -> usize {
        self.window.map_or(self.max_positions, |window| window.min(self.max_positions))
    }

    /// Refuses texts of up to `max_length` tokens where that is longer.
    ///
    /// # Errors
    /// Config, with what limits it.
    pub(crate) fn check(&self, max_length: usize) -> Result<()> {
        let n = self.max_positions;
        let message = match self.window {
            _ if max_length <= self.n_tokens() => return Ok(()),
            Some(window) if max_length <= n => format!(
                "the model has {n} positions, but its attention slides over {window} tokens, and is run only where those are \
                 the whole text; take at most {window}"
            ),
            _ => format!("the model has {n} positions; take at most {}", self.n_tokens()),
        };
        let key = "data.max_length";
        Err(Error::config(format!("found {max_length}: {message}")).at(key).with_remedy(Remedy::SetKey(key)))
    }
}

impl Input {
    /// The tokenizer of a model that takes text.
    ///
    /// # Errors
    /// Input where its directory has none; Config where it takes images.
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        match self {
            Self::Text { tokenizer: Some(tokenizer), .. } => Ok(tokenizer),
            Self::Text { directory, .. } => {
                let path = directory.join("tokenizer.json");
                Err(Error::input("it is missing; put it beside the model's weights").at(path.display()))
            }
            Self::Images(_) => Err(Error::config("the model takes images, found text")),
        }
    }

    /// Cuts texts at `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config where the model has fewer positions or that leaves no room; as [`tokenizer`](Self::tokenizer) elsewhere.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.tokenizer()?;
        if let Self::Text { tokenizer: Some(tokenizer), longest, .. } = self {
            longest.check(max_length)?;
            tokenizer.set_max_length(max_length)?;
        }
        Ok(())
    }

    /// The text that a network with this vocabulary takes in; `usual` is where it is cut where nothing says.
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
        assert!(said(plain, 33).contains("found 33: the model has 32 positions; take at most 32"));
        assert!(
            said(sliding, 9).contains("has 32 positions, but its attention slides over 8 tokens"),
            "{}",
            said(sliding, 9)
        );
        assert!(said(sliding, 33).contains("the model has 32 positions; take at most 8"));
        assert!(Longest { max_positions: 32, window: sliding }.check(8).is_ok());
        assert_eq!(Longest { max_positions: 4, window: sliding }.n_tokens(), 4);
    }
}
