//! Runs a tokenizer from an untrusted file: its failures become errors instead of panics, hangs or exhausted
//! memory.

use super::checked::{Checked, check};
use briquette_core::confined::{Confinement, check_stop, confined, quietly};
use briquette_core::{Error, Result};
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;
use tokenizers::Tokenizer;

/// Stack size of a thread that runs a tokenizer, in bytes.
const STACK_BYTES: usize = 8 << 20;
/// Memory limit in bytes, in addition to the memory per byte of text or file.
const MEMORY_BYTES: u64 = 512 << 20;
/// Memory limit for each byte of a text: offsets, words and tokens.
const MEMORY_PER_BYTE: u64 = 1 << 10;
/// Longest input in bytes that a [plain](Checked::is_plain) tokenizer handles in the calling thread.
///
/// Such an input takes milliseconds. A longer one runs in a thread of its own, so that a signal ends the wait.
const SHORT_BYTES: usize = 16 << 10;
/// Time limit of a run, in addition to the time per byte of text.
const TIME: Duration = Duration::from_secs(3);
const TIME_PER_BYTE: Duration = Duration::from_micros(20);

/// A tokenizer and the result of its checks.
#[derive(Debug, Clone)]
pub(super) struct GuardedTokenizer {
    /// Shared, since vocabularies are large and every thread that prepares batches needs one.
    inner: Arc<Tokenizer>,
    checked: Checked,
}

impl GuardedTokenizer {
    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// - Input: the file is not a tokenizer, or a part of it is not supported
    /// - Io: the system refuses a thread
    /// - Interrupted: the user stopped the program
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

    /// Returns the tokenizer, for queries of its vocabulary.
    pub(super) fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    /// Returns the longest token of the vocabulary in bytes.
    pub(super) fn longest_token(&self) -> usize {
        self.checked.longest_token
    }

    /// Runs the tokenizer on an input of `n_bytes`.
    ///
    /// # Errors
    /// - Input: `work` fails, panics, or exceeds its time or memory
    /// - Io: the system refuses a thread
    /// - Interrupted: the user stopped the program
    pub(super) fn run<I: ToOwned<Owned: Send + 'static> + ?Sized + 'static, T: Send + 'static>(
        &self,
        input: &I,
        n_bytes: usize,
        work: impl Fn(&Tokenizer, &I) -> tokenizers::Result<T> + Send + 'static,
    ) -> Result<T> {
        let outcome = if self.checked.is_plain && n_bytes <= SHORT_BYTES {
            check_stop()?;
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
