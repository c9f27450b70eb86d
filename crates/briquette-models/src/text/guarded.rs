//! A tokenizer of an untrusted file. What its library cannot do is an error, never a panic, an endless run or a full memory.

use super::checked::{Checked, check};
use briquette_core::confined::{Confinement, confined, quietly};
use briquette_core::{Error, Result};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use tokenizers::Tokenizer;

/// Bytes of stack of a thread that runs a tokenizer.
const STACK_BYTES: usize = 8 << 20;
/// Bytes of memory, without what grows with the text or the file.
const MEMORY_BYTES: u64 = 512 << 20;
/// Bytes of memory for each byte of a text: offsets, words and tokens.
const MEMORY_PER_BYTE: u64 = 1 << 10;
/// Time that each run may take, and for each byte of a text more.
const TIME: Duration = Duration::from_secs(10);
const TIME_PER_BYTE: Duration = Duration::from_micros(20);

/// A tokenizer and how it is to be run.
#[derive(Debug, Clone)]
pub(super) struct GuardedTokenizer {
    /// Shared: a vocabulary is large, and every thread that prepares batches has one.
    inner: Arc<Tokenizer>,
    checked: Checked,
}

impl GuardedTokenizer {
    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// - Input where it is not a tokenizer, or a part of it is not supported.
    /// - Io where the system refuses a thread.
    /// - Interrupted.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self> {
        let checked = check(&bytes).map_err(Error::input)?;
        let inner = confined(limits(bytes.len()), move || -> tokenizers::Result<Tokenizer> {
            let mut tokenizer = Tokenizer::from_bytes(bytes)?;
            tokenizer.with_padding(None);
            tokenizer.with_truncation(None)?;
            Ok(tokenizer)
        })?;
        let inner = Arc::new(inner.map_err(|error| Error::input(error.to_string()))?);
        Ok(Self { inner, checked })
    }

    /// The tokenizer, for questions about its vocabulary.
    pub(super) fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    /// Bytes of the longest token of the vocabulary.
    pub(super) fn longest_token(&self) -> usize {
        self.checked.longest_token
    }

    /// Runs the tokenizer on an input of `n_bytes`.
    ///
    /// # Errors
    /// - Input where `work` fails or panics, or takes more time or memory than it may.
    /// - Io where the system refuses a thread.
    /// - Interrupted.
    pub(super) fn run<I: ToOwned<Owned: Send + 'static> + ?Sized + 'static, T: Send + 'static>(
        &self,
        input: &I,
        n_bytes: usize,
        work: fn(&Tokenizer, &I) -> tokenizers::Result<T>,
    ) -> Result<T> {
        let outcome = if self.checked.is_plain {
            quietly(|| work(&self.inner, input))?
        } else {
            let (inner, input) = (self.inner.clone(), input.to_owned());
            confined(limits(n_bytes), move || work(&inner, input.borrow()))?
        };
        outcome.map_err(|error| Error::input(error.to_string()))
    }
}

fn limits(n_bytes: usize) -> Confinement {
    Confinement {
        stack_bytes: STACK_BYTES,
        memory_bytes: MEMORY_BYTES.saturating_add((n_bytes as u64).saturating_mul(MEMORY_PER_BYTE)),
        time: TIME + TIME_PER_BYTE.saturating_mul(u32::try_from(n_bytes).unwrap_or(u32::MAX)),
    }
}
