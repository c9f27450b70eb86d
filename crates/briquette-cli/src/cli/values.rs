//! Values of flags, as clap reads them.

use briquette::core::Role;
use briquette::pipeline::context::MAX_THREADS;
use briquette::pipeline::recipe::{ranges, raw::RawBatchSize};
use clap::builder::RangedU64ValueParser;

pub(super) fn n_threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=MAX_THREADS as u64)
}

pub(super) fn parse_sparsity(text: &str) -> Result<f64, String> {
    ranges::of("stage.sparsity").map_or_else(|| Err("expected a number".into()), |range| range.parse(text))
}

pub(super) fn parse_batch_size(text: &str) -> Result<RawBatchSize, String> {
    // What is neither a number nor "auto" is refused with the recipe's own words.
    Ok(text.parse().map_or_else(|_| RawBatchSize::Name(text.to_string()), RawBatchSize::Size))
}

pub(super) fn parse_role(text: &str) -> Result<Role, String> {
    serde_json::from_value(serde_json::Value::String(text.to_string()))
        .map_err(|_| "expected linear, conv, embedding, norm, bias, parameter or unknown".to_string())
}

pub(super) fn n_points() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// `cosine=0.99`.
pub(super) fn parse_bound(text: &str) -> Result<(String, f64), String> {
    let wrong = || "expected a metric and a number, such as cosine=0.99".to_string();
    let (name, bound) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.trim().to_string(), bound.trim().parse().map_err(|_| wrong())?))
}
