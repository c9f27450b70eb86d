//! What running a model may use.

use crate::raw::{RawBatchSize, RawRecipe};
use crate::words::one_of;
use briquette_core::{Error, Result};

/// What training may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainMemory {
    /// The most bytes.
    pub limit: Option<u64>,
    /// Items in memory at once, at most.
    pub batch_size: usize,
    /// Whether it was left to the memory there is.
    pub is_auto: bool,
    /// Batches of one step.
    pub accumulate: usize,
    /// Whether cheap tensors are made again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Whether the teacher is asked once for each item.
    pub cache_teacher: bool,
    /// What networks compute in.
    pub dtype: Dtype,
}

/// What networks compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// f32.
    #[default]
    F32,
    /// bf16; trained over weights in f32.
    Bf16,
    /// f16; trained over weights in f32, with loss scaling.
    F16,
}

/// How many items a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// So many.
    Of(usize),
    /// As many as fit.
    Auto,
}

/// Items of a batch where nothing is said.
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

impl TrainMemory {
    pub(crate) fn from_raw(recipe: &RawRecipe) -> Result<Self> {
        let memory = recipe.memory.clone().unwrap_or_default();
        let dtypes = [("f32", Dtype::F32), ("bf16", Dtype::Bf16), ("f16", Dtype::F16)];
        let batch_size = memory.batch_size.map(BatchSize::try_from).transpose()?.unwrap_or_default();
        Ok(Self {
            limit: memory.limit.as_deref().map(|text| bytes_of("memory.limit", text)).transpose()?,
            batch_size: match batch_size {
                BatchSize::Of(n) => n,
                // As many of the usual number as fit the limit; the rest of a batch is accumulated.
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

/// Bytes from "4GiB", "800MB" or a plain number.
///
/// # Errors
/// Config, naming the key.
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
        (Ok(n), Some(factor)) if n > 0.0 && n * factor < 1e18 => Ok((n * factor) as u64),
        _ => Err(Error::config(format!("{key}: found {text:?}, expected a size such as \"4GiB\" or \"800MB\""))),
    }
}

/// Refuses what would do nothing: a limit that nobody holds anything against is no limit.
///
/// # Errors
/// Config, naming the key.
pub(crate) fn check_used(raw: &RawRecipe) -> Result<()> {
    let Some(memory) = &raw.memory else { return Ok(()) };
    let has = |kind: &str| raw.stage.iter().any(|stage| stage.kind == kind);
    let trains = has("distill");
    let runs = trains || has("evaluate");
    let keys = [
        ("limit", memory.limit.is_some(), runs),
        ("batch_size", memory.batch_size.is_some(), runs),
        ("accumulate", memory.accumulate.is_some(), trains),
        ("gradient_checkpointing", memory.gradient_checkpointing, trains),
        ("cache_teacher", memory.cache_teacher, trains),
        ("dtype", memory.dtype.is_some(), runs),
    ];
    let holds_codes = has("quantize") && !matches!(raw.output.format.as_deref(), Some("dense" | "burnpack"));
    if holds_codes && !trains && memory.dtype.as_deref().is_some_and(|dtype| dtype != "f32") {
        let message =
            "what a quantize stage makes codes of computes in f32; remove it, or write another format, such as dense";
        return Err(Error::config(format!("memory.dtype: {message}")));
    }
    let Some((key, ..)) = keys.iter().find(|(_, is_there, is_used)| *is_there && !is_used) else { return Ok(()) };
    let message = match ["limit", "batch_size", "dtype"].contains(key) {
        true => "no stage of this recipe runs a model; add an evaluate or a distill stage, or remove it",
        false => "only a distill stage looks at it; add one, or remove it",
    };
    Err(Error::config(format!("memory.{key}: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recipe;
    use crate::text::parse;
    use std::path::Path;

    fn refused(stages: &str, memory: &str) -> Option<String> {
        let head = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[data]\neval = \"d\"\n";
        let raw = parse(&format!("{head}[memory]\n{memory}\n{stages}"), "r.toml").unwrap();
        Recipe::from_raw(raw, Path::new("")).err().map(|error| {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        })
    }

    #[test]
    fn sizes_are_read_in_both_kinds_of_unit() {
        assert_eq!(bytes_of("k", "4GiB").unwrap(), 4 << 30);
        assert_eq!(bytes_of("k", "1.5 MB").unwrap(), 1_500_000);
        assert_eq!(bytes_of("k", "512").unwrap(), 512);
        for text in ["", "GiB", "-1MB", "0", "4 parsecs", "1e99GB"] {
            assert!(bytes_of("k", text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_key_that_nothing_looks_at_is_refused() {
        let (cast, evaluate) = ("[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n", "[[stage]]\nkind = \"evaluate\"\n");
        let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n[[stage]]\nkind = \"evaluate\"\n";
        let cases = [
            (cast, "limit = \"100B\"", "memory.limit: no stage of this recipe runs a model"),
            (cast, "batch_size = \"auto\"", "memory.batch_size: no stage"),
            (cast, "dtype = \"bf16\"", "memory.dtype: no stage"),
            (quantize, "dtype = \"bf16\"", "memory.dtype: what a quantize stage makes codes of"),
            (evaluate, "accumulate = 2", "memory.accumulate: only a distill stage looks at it"),
            (evaluate, "gradient_checkpointing = true", "memory.gradient_checkpointing: only"),
            (evaluate, "cache_teacher = true", "memory.cache_teacher: only"),
        ];
        for (stages, memory, expected) in cases {
            let error = refused(stages, memory).unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(refused(evaluate, "limit = \"1GB\"\nbatch_size = 3\ndtype = \"f16\""), None);
        assert_eq!(refused(quantize, "dtype = \"f32\""), None);
        assert_eq!(refused(cast, ""), None);
    }

    #[test]
    fn a_bad_value_is_named_wherever_it_is() {
        for stages in ["", "[[stage]]\nkind = \"evaluate\"\n"] {
            let cases = [
                ("dtype = \"nonsense\"", "memory.dtype: found \"nonsense\""),
                ("accumulate = 0", "memory.accumulate: found 0"),
            ];
            for (memory, expected) in cases {
                let error = refused(stages, memory).unwrap();
                assert!(error.starts_with(expected), "{error}");
            }
        }
    }
}
