//! Memory settings of runs that execute a model.

use crate::parse::raw::{RawBatchSize, RawMemory};
use crate::parse::words::one_of;
use briquette_core::{Error, Result};

/// The memory settings of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainMemory {
    /// Memory limit in bytes.
    pub limit: Option<u64>,
    /// The largest number of items in memory at once.
    pub batch_size: usize,
    /// Whether a batch may be split if it does not fit in memory (`batch_size = "auto"`).
    pub is_auto: bool,
    /// Number of batches whose gradients are accumulated for one step.
    pub accumulate: usize,
    /// Whether cheap activations are computed again in the backward pass instead of being stored.
    pub gradient_checkpointing: bool,
    /// Whether the teacher runs once for each item, and its outputs are cached for later epochs.
    pub cache_teacher: bool,
    /// The float type of computation.
    pub dtype: Dtype,
}

/// The float type of computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// f32.
    #[default]
    F32,
    /// bf16, with f32 master weights in training.
    Bf16,
    /// f16, with f32 master weights and loss scaling in training.
    F16,
}

/// The number of items in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// A fixed number.
    Of(usize),
    /// As many as fit in memory.
    Auto,
}

/// Default number of items in a batch.
pub(crate) const BATCH_SIZE: usize = 32;

impl Default for BatchSize {
    fn default() -> Self {
        Self::Of(BATCH_SIZE)
    }
}

impl TryFrom<RawBatchSize> for BatchSize {
    type Error = Error;

    fn try_from(asked: RawBatchSize) -> Result<Self> {
        match asked {
            RawBatchSize::Size(n) => Ok(Self::Of(n)),
            RawBatchSize::Name(name) if name == "auto" => Ok(Self::Auto),
            RawBatchSize::Name(name) => {
                Err(Error::config(format!("memory.batch_size: found {name:?}, expected at least 1, or \"auto\"")))
            }
        }
    }
}

impl RawMemory {
    /// Returns the memory limit in bytes, if there is one.
    ///
    /// # Errors
    /// Config: `limit` is not a size.
    pub fn limit_bytes(&self) -> Result<Option<u64>> {
        self.limit.as_deref().map(|text| bytes_of("memory.limit", text)).transpose()
    }
}

impl TrainMemory {
    pub(crate) fn from_raw(memory: Option<&RawMemory>) -> Result<Self> {
        let memory = memory.cloned().unwrap_or_default();
        let dtypes = [("f32", Dtype::F32), ("bf16", Dtype::Bf16), ("f16", Dtype::F16)];
        let limit = memory.limit_bytes()?;
        let batch_size = memory.batch_size.map(BatchSize::try_from).transpose()?.unwrap_or_default();
        Ok(Self {
            limit,
            batch_size: match batch_size {
                BatchSize::Of(n) => n,
                // A step keeps the default number of items; a batch that does not fit is split.
                BatchSize::Auto => BATCH_SIZE,
            },
            is_auto: matches!(batch_size, BatchSize::Auto),
            accumulate: memory.accumulate.unwrap_or(1),
            gradient_checkpointing: memory.gradient_checkpointing,
            cache_teacher: memory.cache_teacher,
            dtype: one_of("memory.dtype", memory.dtype.as_deref().unwrap_or("f32"), &dtypes)?,
        })
    }
}

/// Parses "4GiB", "800MB" or a plain number of bytes.
///
/// # Errors
/// Config: the text is not a size, or its unit is missing.
pub(crate) fn bytes_of(key: &str, text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let units = [
        ("", 1.0),
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1024.0 * 1024.0),
        ("GiB", 1024.0 * 1024.0 * 1024.0),
    ];
    let unit = text[digits.len()..].trim();
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| factor);
    match (digits.trim().parse::<f64>(), factor) {
        (Ok(n), Some(_)) if n.fract() != 0.0 && unit.is_empty() => Err(without_unit(key, text)),
        (Ok(n), Some(factor)) if n > 0.0 && n * factor < 1e18 => Ok((n * factor) as u64),
        _ => Err(Error::config(format!("{key}: found {text:?}, expected a size such as \"4GiB\" or \"800MB\""))),
    }
}

/// Returns the error for a size without a unit.
pub(crate) fn without_unit(key: &str, text: &str) -> Error {
    let size = text.trim();
    Error::config(format!("{key}: found {text:?}, expected a size with its unit; did you mean \"{size}MB\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fractional_size_needs_a_unit() {
        let error = bytes_of("budget.bytes", "9.4").unwrap_err().to_string();
        assert_eq!(error, "budget.bytes: found \"9.4\", expected a size with its unit; did you mean \"9.4MB\"?");
        assert_eq!(bytes_of("k", "9.0").unwrap(), 9);
    }

    #[test]
    fn sizes_have_decimal_or_binary_units() {
        assert_eq!(bytes_of("k", "4GiB").unwrap(), 4 << 30);
        assert_eq!(bytes_of("k", "1.5 MB").unwrap(), 1_500_000);
        assert_eq!(bytes_of("k", "512").unwrap(), 512);
        for text in ["", "GiB", "-1MB", "0", "4 parsecs", "1e99GB"] {
            assert!(bytes_of("k", text).is_err(), "{text:?}");
        }
    }
}
