//! Inputs of models.

use crate::config::Folder;
use crate::data::{ImageInput, SoundInput};
use crate::target::TargetStart;
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
        /// Number of positions of the model, which limits its texts.
        max_positions: usize,
        /// Names of the classes of a text classifier, as in `id2label` of config.json.
        label_names: Vec<String>,
        /// Whether the two texts of a pair are one input, as for classifiers.
        reads_pairs: bool,
    },
    /// The source and the target of an encoder-decoder.
    Pair {
        /// Directory of the model.
        directory: PathBuf,
        /// Tokenizer of sources and targets, if the directory has one.
        tokenizer: Option<TextTokenizer>,
        /// The tokens that targets begin with.
        start: TargetStart,
        /// Number of positions of the model, which limits sources and targets.
        max_positions: usize,
        /// How the model reads its sources, if they are sounds.
        sound: Option<SoundInput>,
    },
}

impl Input {
    /// Returns the tokenizer of a model that takes text.
    ///
    /// # Errors
    /// - Input: the directory has no tokenizer
    /// - Config: the model takes images
    pub fn tokenizer(&self) -> Result<&TextTokenizer> {
        match self {
            Self::Text { tokenizer: Some(tokenizer), .. } | Self::Pair { tokenizer: Some(tokenizer), .. } => {
                Ok(tokenizer)
            }
            Self::Text { directory, .. } | Self::Pair { directory, .. } => {
                let path = directory.join("tokenizer.json");
                Err(Error::input("it is missing; put it next to the model's weights").at(path.display()))
            }
            Self::Images(_) => Err(Error::config("the model takes images, found text")),
        }
    }

    /// Returns whether the two texts of a pair are one input.
    pub fn reads_pairs(&self) -> bool {
        matches!(self, Self::Text { reads_pairs: true, .. })
    }

    /// Truncates texts to `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config: the model has fewer positions, or there is no room for text. See [`tokenizer`](Self::tokenizer)
    /// for other errors.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        self.tokenizer()?;
        if let Self::Text { tokenizer: Some(tokenizer), max_positions, .. }
        | Self::Pair { tokenizer: Some(tokenizer), max_positions, .. } = self
        {
            check_length(max_length, *max_positions)?;
            tokenizer.set_max_length(max_length)?;
        }
        Ok(())
    }

    /// Returns the text input of a network with this vocabulary and these classes; `usual` is the default length.
    pub(crate) fn text(
        folder: &Folder,
        vocab_size: usize,
        max_positions: usize,
        usual: usize,
        (label_names, reads_pairs): (Vec<String>, bool),
    ) -> Result<Self> {
        let max_length = text::max_seq_length(folder)?.unwrap_or(usual).min(max_positions);
        let tokenizer = tokenizer_of(folder, vocab_size, max_length)?;
        let directory = folder.0.path().to_path_buf();
        Ok(Self::Text {
            directory,
            tokenizer,
            pooling: Pooling::read(folder)?,
            max_positions,
            label_names,
            reads_pairs,
        })
    }

    /// Returns the input of an encoder-decoder with this vocabulary; `usual` is the default length.
    pub(crate) fn pair(
        folder: &Folder,
        vocab_size: usize,
        max_positions: usize,
        usual: usize,
        sound: Option<SoundInput>,
    ) -> Result<Self> {
        let tokenizer = tokenizer_of(folder, vocab_size, usual.min(max_positions))?;
        let (directory, start) = (folder.0.path().to_path_buf(), TargetStart::read(folder, vocab_size)?);
        Ok(Self::Pair { directory, tokenizer, start, max_positions, sound })
    }
}

fn tokenizer_of(folder: &Folder, vocab_size: usize, max_length: usize) -> Result<Option<TextTokenizer>> {
    let mut tokenizer = TextTokenizer::read(folder, vocab_size, max_length)?;
    if let Some(tokenizer) = &mut tokenizer {
        tokenizer.set_max_length(max_length).map_err(|error| error.at(folder.0.path().display()))?;
    }
    Ok(tokenizer)
}

/// Refuses texts that are longer than the positions of the model.
fn check_length(max_length: usize, n: usize) -> Result<()> {
    if max_length <= n {
        return Ok(());
    }
    let (key, message) =
        ("data.max_length", format!("found {max_length}: the model has {n} positions; use at most {n}"));
    Err(Error::config(message).at(key).with_remedy(Remedy::SetKey(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_limits_are_reported_by_their_name() {
        let error = check_length(33, 32).unwrap_err().to_string();
        assert!(error.contains("found 33: the model has 32 positions; use at most 32"), "{error}");
        assert!(check_length(32, 32).is_ok());
    }
}
