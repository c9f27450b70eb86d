//! The tokens that a target of an encoder-decoder begins with.

use crate::config::Folder;
use crate::text::TextTokenizer;
use briquette_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The tokens that a target begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStart {
    /// The first token of the decoder's input.
    start: u32,
    /// The first token that a model writes, where its settings force one.
    forced: Option<u32>,
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// Whether a text begins with the special tokens of the tokenizer, as Whisper's do.
    has_special: bool,
    /// The tokens of the languages of sources and of targets, as mBART's tokenizer has them.
    languages: Option<[String; 2]>,
}

/// The languages of a tokenizer, from tokenizer_config.json.
#[derive(Deserialize)]
struct Languages {
    src_lang: Option<String>,
    tgt_lang: Option<String>,
}

impl TargetStart {
    /// Reads `decoder_start_token_id`, `forced_bos_token_id` and `eos_token_id` of generation_config.json, or else of
    /// config.json.
    ///
    /// # Errors
    /// Input: a file is damaged, or the start is missing or not in the vocabulary.
    pub(crate) fn read(folder: &Folder, vocab_size: usize) -> Result<Self> {
        let files = ["generation_config.json", "config.json"];
        let settings = files.map(|file| folder.read::<Map<String, Value>>(file));
        let [first, second] = settings;
        let settings = [first?.unwrap_or_default(), second?.unwrap_or_default()];
        let value = |key: &str| settings.iter().find_map(|settings| settings.get(key).filter(|value| !value.is_null()));
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let in_table = |id: &u32| (*id as usize) < vocab_size;
        let start = value("decoder_start_token_id").and_then(id).filter(in_table);
        let start = start.ok_or_else(|| {
            let message = format!("decoder_start_token_id is missing or not below {vocab_size}; add it");
            folder.config_error(&message)
        })?;
        let ends = match value("eos_token_id") {
            Some(Value::Array(all)) => all.iter().filter_map(id).collect(),
            Some(one) => id(one).into_iter().collect(),
            None => Vec::new(),
        };
        let forced = value("forced_bos_token_id").and_then(id).filter(in_table);
        let languages = match folder.read::<Languages>("tokenizer_config.json")? {
            Some(Languages { src_lang: Some(source), tgt_lang: Some(target) }) => Some([source, target]),
            _ => None,
        };
        let has_special = folder.model_type()?.as_deref() == Some("whisper");
        Ok(Self { start, forced, ends, has_special, languages })
    }

    /// Returns the tokens of a target: the start, then the text with the tokenizer's special tokens.
    ///
    /// The decoder predicts each token from those before it.
    ///
    /// # Errors
    /// See [`TextTokenizer::encode`].
    pub fn target(&self, tokenizer: &TextTokenizer, text: &str) -> Result<Vec<u32>> {
        let mut tokens = tokenizer.encode(text)?.ids;
        if let Some([source, target]) =
            self.languages.as_ref().map(|names| names.each_ref().map(|name| tokenizer.token(name)))
            && let (Some(source), Some(target)) = (source, target)
        {
            tokens.iter_mut().filter(|token| **token == source).for_each(|token| *token = target);
        }
        // Whisper's tokenizer adds the start itself.
        if tokens.first() != Some(&self.start) {
            tokens.insert(0, self.start);
        }
        tokens.truncate(tokenizer.max_length());
        match tokens.len() {
            0 | 1 => Err(Error::input(format!("found no token in the target {text:?}; leave it out"))),
            _ => Ok(tokens),
        }
    }

    /// Returns the tokens that a model's own text begins with: the start, and special tokens before the words.
    ///
    /// # Errors
    /// See [`TextTokenizer::encode`].
    pub fn prefix(&self, tokenizer: &TextTokenizer) -> Result<Vec<u32>> {
        let special = match self.forced {
            Some(forced) => vec![forced],
            None if self.has_special => tokenizer.special_tokens()?,
            None => Vec::new(),
        };
        let special = special.into_iter().filter(|token| *token != self.start && !self.ends.contains(token));
        Ok(std::iter::once(self.start).chain(special).collect())
    }
}
