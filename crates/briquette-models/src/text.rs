//! Tokenizers and sentence embeddings.

mod charsmap;
mod checked;
mod dense;
mod guarded;
mod pieces;
mod pooling;
mod settings;

use crate::config::Folder;
use crate::data::TextItem;
use briquette_core::{Error, ErrorKind, Result};
use briquette_formats::ModelDir;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
pub use dense::{DENSE_CLASS, DenseModule};
use guarded::GuardedTokenizer;
pub(crate) use pooling::last_token;
pub use pooling::{PoolBy, Pooling};
use serde::Deserialize;
pub(crate) use settings::max_seq_length;
use settings::{TOKENIZER_CONFIG, TokenizerSettings};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor, TruncationDirection, TruncationParams, TruncationStrategy};

/// The tokens of a text, or of two texts that a classifier reads together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// The token ids; never empty.
    pub ids: Vec<u32>,
    /// The number of tokens in the first segment. Those after it are in the second segment (`token_type_ids` is 1).
    pub n_first: usize,
}

impl Tokens {
    /// Returns the number of tokens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the tokens of the second segment.
    pub fn second(&self) -> Range<usize> {
        self.n_first..self.ids.len()
    }
}

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
    /// Whether the model gets the segments of pairs.
    has_segments: bool,
}

/// The relevant key of tokenizer_config.json.
#[derive(Debug, Default, Deserialize)]
struct TokenizerInputs {
    /// The inputs of the model that the tokenizer makes.
    model_input_names: Option<Vec<String>>,
}

impl TokenizerInputs {
    /// Returns whether the model gets segments. As in transformers, it does unless the listed inputs lack them.
    fn has_segments(&self) -> bool {
        self.model_input_names.as_ref().is_none_or(|names| names.iter().any(|name| name == "token_type_ids"))
    }
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
        let bytes = folder.read::<TokenizerSettings>(TOKENIZER_CONFIG)?.unwrap_or_default().apply(bytes);
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
        let config: TokenizerInputs = folder.read(TOKENIZER_CONFIG)?.unwrap_or_default();
        Ok(Some(Self { path, guarded, vocab_size, max_length, has_segments: config.has_segments() }))
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
        let n_special = self.n_special(false)?;
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
        self.checked(encoding.get_ids())
    }

    /// Encodes a text, or two texts together with the special tokens between them, truncated to `max_length` tokens.
    ///
    /// The longer of two texts is truncated first, like transformers' `longest_first`.
    ///
    /// # Errors
    /// - Input: the tokens of the second text are not the second segment
    /// - Config: special tokens leave no room for text
    ///
    /// See [`encode`](Self::encode) for other errors.
    pub fn encode_item(&self, item: &TextItem) -> Result<Tokens> {
        let Some(second) = &item.second else { return self.encode(&item.first) };
        let pair = (item.first.clone(), second.clone());
        let n_special = self.n_special(true)?;
        if self.max_length <= n_special {
            let message =
                format!("max_length is {}, expected more than {n_special} for pairs of texts", self.max_length);
            return Err(Error::config(message));
        }
        let (limit, n_bytes) = (self.max_length - n_special, item.n_bytes());
        let encode = move |inner: &tokenizers::Tokenizer, (first, second): &(String, String)| {
            let bare = (inner.encode_fast(first.as_str(), false)?, inner.encode_fast(second.as_str(), false)?);
            let (first, second) = truncate_encodings(bare.0, Some(bare.1), &longest_first(limit))?;
            inner.post_process(first, second, true)
        };
        let found = self.guarded.run(&pair, n_bytes, encode).map_err(|error| self.failed(error))?;
        if !self.has_segments {
            return self.checked(found.get_ids());
        }
        let n_first = found.get_type_ids().iter().take_while(|&&segment| segment == 0).count();
        if found.get_type_ids()[n_first..].iter().any(|&segment| segment != 1) {
            let message = "the segments of a pair are not 0 and then 1; this tokenizer is not supported for pairs";
            return Err(Error::input(message).at(self.path.display()));
        }
        Ok(Tokens { n_first, ..self.checked(found.get_ids())? })
    }

    /// Returns the id of a token.
    pub(crate) fn token(&self, name: &str) -> Option<u32> {
        self.guarded.inner().token_to_id(name)
    }

    /// Returns the special tokens around an empty text.
    pub(crate) fn special_tokens(&self) -> Result<Vec<u32>> {
        Ok(self.encode_whole("")?.get_ids().to_vec())
    }

    /// Encodes a whole text of any length.
    ///
    /// A long text is encoded in pieces, since a tokenizer takes up to 100 bytes for each byte of text.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_all(&self, text: &str) -> Result<Tokens> {
        let encode = |piece: &str| self.encoding(piece, false).map(|found| found.get_ids().to_vec());
        let cuts = pieces::cuts(text, encode)?;
        if cuts.is_empty() {
            return self.checked(self.encode_whole(text)?.get_ids());
        }
        let first = &text[..cuts[0]];
        let (whole, mut ids) = (self.encode_whole(first)?.get_ids().to_vec(), encode(first)?);
        // Special tokens are around the text of a piece.
        let before = (0..=whole.len().saturating_sub(ids.len())).find(|&at| whole[at..].starts_with(&ids)).unwrap_or(0);
        let after = whole[(before + ids.len()).min(whole.len())..].to_vec();
        ids.splice(..0, whole[..before].iter().copied());
        // A list that grows would be in memory three times while it is copied.
        ids.reserve_exact((ids.len() as f64 * 1.1 * (text.len() - cuts[0]) as f64 / cuts[0] as f64) as usize);
        let ends = cuts.iter().skip(1).copied().chain([text.len()]);
        for (&start, end) in cuts.iter().zip(ends) {
            ids.extend(encode(&text[start..end])?);
        }
        ids.extend(after);
        self.checked(&ids)
    }

    /// Predicts the bytes that [`encode_all`](Self::encode_all) takes, from the first tokens of the text.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encoding_bytes(&self, text: &str) -> Result<u64> {
        let start = &text[..text.floor_char_boundary(4096)];
        let per_byte = self.encode_whole(start)?.len() as f64 / start.len().max(1) as f64;
        let of_piece = pieces::ENCODING_BYTES * text.len().min(pieces::LONGEST_PIECE);
        Ok(of_piece as u64 + (4.0 * 1.2 * per_byte * text.len() as f64) as u64)
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
        self.checked(encoding.get_ids())
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
        bare.truncate(self.max_length.saturating_sub(self.n_special(false)?), 0, TruncationDirection::Right);
        let process = |inner: &tokenizers::Tokenizer, bare: &Encoding| inner.post_process(bare.clone(), None, true);
        self.guarded.run(&bare, text.len(), process).map_err(|error| self.failed(error))
    }

    /// Returns the number of special tokens around a text, or around and between two.
    fn n_special(&self, is_pair: bool) -> Result<usize> {
        let count = |inner: &tokenizers::Tokenizer, is_pair: &bool| {
            Ok(inner.get_post_processor().map_or(0, |processor| processor.added_tokens(*is_pair)))
        };
        self.guarded.run(&is_pair, 0, count).map_err(|error| self.failed(error))
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

    fn checked(&self, ids: &[u32]) -> Result<Tokens> {
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            let token = self.guarded.inner().id_to_token(id).unwrap_or_default();
            let message = format!(
                "token {token:?} has id {id}, but the model has {} entries; the tokenizer belongs to another model",
                self.vocab_size
            );
            return Err(Error::input(message).at(self.path.display()));
        }
        // An empty text gets one token: without any, the softmax of attention would be 0 / 0.
        let ids = if ids.is_empty() { vec![0] } else { ids.to_vec() };
        Ok(Tokens { n_first: ids.len(), ids })
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
    let longest = texts.iter().map(Tokens::len).max().unwrap_or(0);
    let mut ids = vec![0_i32; texts.len() * longest];
    let mut padding = vec![true; ids.len()];
    for (row, tokens) in texts.iter().enumerate() {
        for (column, &id) in tokens.ids.iter().enumerate() {
            ids[row * longest + column] = id as i32;
            padding[row * longest + column] = false;
        }
    }
    let shape = [texts.len(), longest];
    let ids = Tensor::from_data(TensorData::new(ids, shape), device);
    (ids, Tensor::from_data(TensorData::new(padding, shape), device))
}

/// Returns the segment of each token `[texts, length]`: 1 in the second, whose tokens are given, and 0 elsewhere.
///
/// `None` if no text has a second segment.
pub fn segments(second: &[Range<usize>], length: usize, device: &Device) -> Option<Tensor<2, Int>> {
    second.iter().any(|second| !second.is_empty()).then(|| {
        let of_text = |second: &Range<usize>| (0..length).map(|at| i32::from(second.contains(&at))).collect::<Vec<_>>();
        let all: Vec<i32> = second.iter().flat_map(of_text).collect();
        Tensor::from_data(TensorData::new(all, [second.len(), length]), device)
    })
}

/// Returns the rule that removes tokens from the end of the longer text until both have `n` tokens together.
fn longest_first(n: usize) -> TruncationParams {
    TruncationParams { max_length: n, strategy: TruncationStrategy::LongestFirst, ..TruncationParams::default() }
}
