//! Tokenizers and sentence embeddings.

mod charsmap;
mod checked;
mod dense;
mod guarded;

use crate::config::Folder;
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::ModelDir;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
pub use dense::{DENSE_CLASS, DenseModule};
use guarded::GuardedTokenizer;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tokenizers::{Encoding, PostProcessor, TruncationDirection};

/// The tokens of a text; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(pub Vec<u32>);

/// A tokenizer whose tokens are checked against the model's vocabulary.
///
/// A tokenizer with unknown regular expressions runs on its own thread with limits on stack, memory and time. The
/// memory limit needs an allocator that calls [`take`](briquette_core::confined::take) and
/// [`give`](briquette_core::confined::give), as the allocator of the command does. With another allocator, the
/// checks of `tokenizer.json` and the time limit remain: read untrusted tokenizers in a process with limited
/// memory.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    path: PathBuf,
    guarded: GuardedTokenizer,
    /// Size of the model's embedding table.
    vocab_size: usize,
    max_length: usize,
}

impl TextTokenizer {
    /// Reads the `tokenizer.json` in the directory of a model with `vocab_size` entries. Texts are truncated to
    /// `max_length` tokens.
    ///
    /// # Errors
    /// - Input: the file is missing, damaged, or not supported
    /// - Io: the file cannot be read
    pub fn open(directory: &Path, vocab_size: usize, max_length: usize) -> Result<Self> {
        let folder = Folder(ModelDir::open(directory)?);
        let missing =
            || Error::input("it is missing; put it next to the weights").at(folder.file("tokenizer.json").display());
        Self::read(&folder, vocab_size, max_length)?.ok_or_else(missing)
    }

    /// Reads `tokenizer.json`; `None` if it is missing. Texts are truncated to `max_length` tokens.
    pub(crate) fn read(folder: &Folder, vocab_size: usize, max_length: usize) -> Result<Option<Self>> {
        let path = folder.file("tokenizer.json");
        let Some(bytes) = folder.read_whole("tokenizer.json")? else { return Ok(None) };
        let guarded = GuardedTokenizer::new(bytes).map_err(|error| match error.kind {
            ErrorKind::Input => {
                let message = format!("it cannot be used as a tokenizer: {error}; download it again");
                Error::input(message).at(path.display())
            }
            _ => error,
        })?;
        if guarded.inner().get_vocab_size(true) == 0 {
            return Err(Error::input("its vocabulary is empty; download it again").at(path.display()));
        }
        Ok(Some(Self { path, guarded, vocab_size, max_length }))
    }

    /// Returns the largest number of tokens per text.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Returns an upper bound on the bytes of text in `n_tokens` tokens. Normalizers may shorten a text to a
    /// quarter.
    pub fn most_bytes(&self, n_tokens: usize) -> usize {
        n_tokens.saturating_mul(self.guarded.longest_token().max(16)).saturating_mul(4)
    }

    /// Truncates texts to `max_length` tokens from now on.
    ///
    /// # Errors
    /// Config: special tokens leave no room for text.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<()> {
        let n_special = self.n_special()?;
        if max_length <= n_special {
            return Err(Error::config(format!("max_length is {max_length}, expected more than {n_special}")));
        }
        self.max_length = max_length;
        Ok(())
    }

    /// Encodes a text with special tokens, truncated to `max_length` tokens.
    ///
    /// # Errors
    /// Input: a token is missing in the vocabulary or in the model's table.
    pub fn encode(&self, text: &str) -> Result<Tokens> {
        let mut encoding = self.encode_whole(text)?;
        if encoding.len() > self.max_length {
            encoding = self.truncated(text)?;
        }
        self.checked(&encoding)
    }

    /// Returns the special tokens around an empty text.
    pub(crate) fn special_tokens(&self) -> Result<Vec<u32>> {
        Ok(self.encode_whole("")?.get_ids().to_vec())
    }

    /// Encodes a whole text of any length.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_all(&self, text: &str) -> Result<Tokens> {
        self.checked(&self.encode_whole(text)?)
    }

    /// Encodes a whole prompt. Special tokens are added unless the text `has_special` tokens, as from a chat
    /// template.
    ///
    /// # Errors
    /// Input: the text is empty. See [`encode`](Self::encode) for other errors.
    pub fn encode_prompt(&self, text: &str, has_special: bool) -> Result<Tokens> {
        let encoding = self.encoding(text, !has_special)?;
        if text.is_empty() || encoding.get_ids().is_empty() {
            return Err(Error::input("the prompt is empty; give the beginning of a text"));
        }
        self.checked(&encoding)
    }

    /// Decodes tokens to text without special tokens.
    ///
    /// # Errors
    /// Input: a token is not in the vocabulary.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let n_bytes = tokens.len().saturating_mul(16);
        self.guarded
            .run(tokens, n_bytes, |inner, tokens| inner.decode(tokens, true))
            .map_err(|error| self.failed(error))
    }

    /// Returns an incremental decoder.
    pub fn stream(&self) -> TokenStream<'_> {
        TokenStream { tokenizer: self, tokens: Vec::new(), shown: 0 }
    }

    fn encode_whole(&self, text: &str) -> Result<Encoding> {
        self.encoding(text, true)
    }

    fn encoding(&self, text: &str, has_special: bool) -> Result<Encoding> {
        let encode = match has_special {
            true => |inner: &tokenizers::Tokenizer, text: &str| inner.encode_fast(text, true),
            false => |inner: &tokenizers::Tokenizer, text: &str| inner.encode_fast(text, false),
        };
        self.guarded.run(text, text.len(), encode).map_err(|error| self.failed(error))
    }

    /// Truncates before adding special tokens, like the reference.
    fn truncated(&self, text: &str) -> Result<Encoding> {
        let mut bare = self.encoding(text, false)?;
        bare.truncate(self.max_length.saturating_sub(self.n_special()?), 0, TruncationDirection::Right);
        let process = |inner: &tokenizers::Tokenizer, bare: &Encoding| inner.post_process(bare.clone(), None, true);
        self.guarded.run(&bare, text.len(), process).map_err(|error| self.failed(error))
    }

    /// Returns the number of special tokens around a text.
    fn n_special(&self) -> Result<usize> {
        let count = |inner: &tokenizers::Tokenizer, (): &()| {
            Ok(inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false)))
        };
        self.guarded.run(&(), 0, count).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: Error) -> Error {
        match error.kind {
            ErrorKind::Input => {
                let message = format!("cannot tokenize: {error}; this tokenizer does not support the text");
                Error::input(message).at(self.path.display())
            }
            _ => error,
        }
    }

    fn checked(&self, encoding: &Encoding) -> Result<Tokens> {
        let ids = encoding.get_ids();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            let token = self.guarded.inner().id_to_token(id).unwrap_or_default();
            let message = format!(
                "token {token:?} has id {id}, but the model has {} entries; the tokenizer belongs to another model",
                self.vocab_size
            );
            return Err(Error::input(message).at(self.path.display()));
        }
        // An empty text gets one token: without any, the softmax of attention would be 0 / 0.
        Ok(Tokens(if ids.is_empty() { vec![0] } else { ids.to_vec() }))
    }
}

/// Incremental decoder: a token may be part of a character, and its text may depend on earlier tokens.
#[derive(Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a TextTokenizer,
    /// Tokens of the current line.
    tokens: Vec<u32>,
    /// Bytes of their text that were returned.
    shown: usize,
}

impl TokenStream<'_> {
    /// Adds a token and returns the new text; empty while a character is incomplete.
    ///
    /// # Errors
    /// Input: the token is not in the vocabulary.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let text = self.tokenizer.decode(&self.tokens)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        Ok(self.take(text))
    }

    /// Returns the rest of the text.
    ///
    /// # Errors
    /// See [`push`](Self::push).
    pub fn finish(mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.tokens)?;
        Ok(self.take(text))
    }

    fn take(&mut self, text: String) -> String {
        let new = text.get(self.shown..).unwrap_or_default().to_string();
        self.shown = self.shown.max(text.len());
        if new.ends_with('\n') {
            // Lines decode independently. Decoding all tokens again for each new one would take quadratic time.
            self.tokens.clear();
            self.shown = 0;
        }
        new
    }
}

/// Pads texts on the right to the longest; the second tensor is `true` at padding.
pub fn padded(texts: &[Tokens], device: &Device) -> (Tensor<2, Int>, Tensor<2, Bool>) {
    let longest = texts.iter().map(|tokens| tokens.0.len()).max().unwrap_or(0);
    let mut ids = vec![0_i32; texts.len() * longest];
    let mut padding = vec![true; ids.len()];
    for (row, tokens) in texts.iter().enumerate() {
        for (column, &id) in tokens.0.iter().enumerate() {
            ids[row * longest + column] = id as i32;
            padding[row * longest + column] = false;
        }
    }
    let shape = [texts.len(), longest];
    let ids = Tensor::from_data(TensorData::new(ids, shape), device);
    (ids, Tensor::from_data(TensorData::new(padding, shape), device))
}

/// Pooling of the hidden states of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolBy {
    /// Mean over the tokens without padding.
    #[default]
    Mean,
    /// State of the first token.
    Cls,
    /// State of the last token.
    LastToken,
}

/// Pooling of a sentence encoder, as in `modules.json` of sentence-transformers.
///
/// Hidden states are pooled, then mapped by the Dense module, then normalized.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooling {
    /// Pooling method.
    pub by: PoolBy,
    /// Linear layer after pooling.
    pub dense: Option<DenseModule>,
    /// Whether embeddings are normalized to length 1.
    pub normalize: bool,
}

#[derive(Deserialize)]
struct StModule {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct StSettings {
    max_seq_length: Option<usize>,
}

impl Pooling {
    /// Reads `modules.json`; without it, returns mean pooling without normalization, like
    /// sentence-transformers.
    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        let Some(modules) = folder.read::<Vec<StModule>>("modules.json")? else {
            return Ok(Self { by: PoolBy::Mean, dense: None, normalize: false });
        };
        let ends = |module: &StModule, kind: &str| module.kind.ends_with(kind);
        let normalize = modules.iter().any(|module| ends(module, ".Normalize"));
        let pooling = modules.iter().find(|module| ends(module, ".Pooling"));
        let known = [".Normalize", ".Dense", ".Pooling", ".Transformer"];
        if let Some(other) = modules.iter().find(|module| !known.iter().any(|kind| ends(module, kind))) {
            let message = format!("found module {}, expected Transformer, Pooling, Dense or Normalize", other.kind);
            return Err(Error::input(message).at(folder.file("modules.json").display()));
        }
        let by = pooling.map_or(Ok(PoolBy::Mean), |module| pool_by(folder, &module.path))?;
        let mut dense = modules.iter().filter(|module| ends(module, ".Dense"));
        let first = dense.next().map(|module| {
            check_path(folder, &module.path)?;
            DenseModule::read(folder, &module.path)
        });
        if dense.next().is_some() {
            let message = "found several Dense modules, expected at most one";
            return Err(Error::input(message).at(folder.file("modules.json").display()));
        }
        Ok(Self { by, dense: first.transpose()?, normalize })
    }

    /// Maps hidden states `[batch, length, width]` to embeddings `[batch, width]`.
    pub fn apply(&self, states: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<2> {
        self.apply_with(states, padding, |pooled| match &self.dense {
            Some(dense) => dense.apply(pooled),
            None => pooled,
        })
    }

    /// Maps hidden states to embeddings, with `dense` instead of the Dense module.
    pub fn apply_with(
        &self,
        states: Tensor<3>,
        padding: Tensor<2, Bool>,
        dense: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let pooled = match self.by {
            PoolBy::Cls => states.narrow(1, 0, 1).squeeze_dim(1),
            PoolBy::LastToken => last_token(states, padding),
            PoolBy::Mean => {
                let there = padding.bool_not().float().unsqueeze_dim::<3>(2);
                let sum: Tensor<2> = (states * there.clone()).sum_dim(1).squeeze_dim(1);
                let n_tokens: Tensor<2> = there.sum_dim(1).squeeze_dim(1);
                sum / n_tokens.clamp_min(1e-9)
            }
        };
        let mapped = dense(pooled);
        if !self.normalize {
            return mapped;
        }
        let length = mapped.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
        mapped / length
    }
}

/// Returns the values `[batch, width]` of the last token before the padding, from values `[batch, length, width]`.
pub(crate) fn last_token(values: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<2> {
    let [batch, length, _] = values.dims();
    if length == 1 {
        return values.squeeze_dim(1);
    }
    let there = padding.bool_not().float();
    let next = there.clone().narrow(1, 1, length - 1);
    let next = Tensor::cat(vec![next, Tensor::zeros([batch, 1], &there.device())], 1);
    let is_last = (there - next).unsqueeze_dim::<3>(2);
    (values * is_last).sum_dim(1).squeeze_dim(1)
}

/// Refuses a module's path that is not a directory beside `modules.json`.
fn check_path(folder: &Folder, path: &str) -> Result<()> {
    if !path.is_empty() && path.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') {
        return Ok(());
    }
    let message = format!("found path {path:?}, expected a directory next to it");
    Err(Error::input(message).at(folder.file("modules.json").display()))
}

fn pool_by(folder: &Folder, path: &str) -> Result<PoolBy> {
    let file = format!("{path}/config.json");
    check_path(folder, path)?;
    let flags: serde_json::Map<String, serde_json::Value> = folder.read(&file)?.unwrap_or_default();
    let is_mode = |key: &str| key.starts_with("pooling_mode_");
    let on: Vec<&str> =
        flags.iter().filter(|(key, on)| is_mode(key) && **on == true).map(|(key, _)| key.as_str()).collect();
    match on.as_slice() {
        [] | ["pooling_mode_mean_tokens"] => Ok(PoolBy::Mean),
        ["pooling_mode_cls_token"] => Ok(PoolBy::Cls),
        ["pooling_mode_lasttoken"] => Ok(PoolBy::LastToken),
        modes => {
            let message = format!("found {}, expected mean, cls or lasttoken pooling", modes.join(" and "));
            Err(Error::input(message).at(folder.file(&file).display()))
        }
    }
}

/// Returns the maximum length of sentence-transformers, if set.
pub(crate) fn max_seq_length(folder: &Folder) -> Result<Option<usize>> {
    Ok(folder.read::<StSettings>("sentence_bert_config.json")?.and_then(|settings| settings.max_seq_length))
}
