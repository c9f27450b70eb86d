//! Parsers of flag values for clap.

use briquette::core::Role;
use briquette::pipeline::context::MAX_THREADS;
use briquette::pipeline::recipe::{ranges, raw::RawBatchSize};
use clap::builder::RangedU64ValueParser;

pub(super) fn n_threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=MAX_THREADS as u64)
}

/// A number from 1 to 2³¹.
pub(super) fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 31)
}

/// Parses `224x224`, or `224` for both.
pub(super) fn parse_image(text: &str) -> Result<[usize; 2], String> {
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=1 << 16).contains(side));
    let (height, width) = text.split_once(['x', 'X']).unwrap_or((text, text));
    match (side(height), side(width)) {
        (Some(height), Some(width)) => Ok([height, width]),
        _ => Err("expected a height and a width from 1 to 65536, such as 224x224".into()),
    }
}

/// Parses `batch=1`.
pub(super) fn parse_dim(text: &str) -> Result<(String, usize), String> {
    let (name, extent) = text.rsplit_once('=').unwrap_or((text, ""));
    match extent.trim().parse().ok().filter(|extent| (1..=1 << 24).contains(extent)) {
        Some(extent) if !name.trim().is_empty() => Ok((name.trim().into(), extent)),
        _ => Err("expected a name and an extent from 1 to 16777216, such as batch=1".into()),
    }
}

pub(super) fn parse_sparsity(text: &str) -> Result<f64, String> {
    let Some(range) = ranges::of("stage.sparsity") else { return Err("expected a number".into()) };
    range.parse(text).map_err(|expected| match text.trim_end_matches([' ', '%']).parse::<f64>() {
        Ok(percent) if (1.0..100.0).contains(&percent) => {
            format!("{expected}; for {percent} % give {}", percent / 100.0)
        }
        _ => expected,
    })
}

pub(super) fn parse_batch_size(text: &str) -> Result<RawBatchSize, String> {
    // Other words are refused with the message of the recipe.
    Ok(text.parse().map_or_else(|_| RawBatchSize::Name(text.to_string()), RawBatchSize::Size))
}

pub(super) fn parse_role(text: &str) -> Result<Role, String> {
    serde_json::from_value(serde_json::Value::String(text.to_string()))
        .map_err(|_| "expected linear, conv, embedding, norm, bias, parameter or unknown".to_string())
}

pub(super) fn n_points() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1000)
}

/// Parses `cosine=0.99`.
pub(super) fn parse_bound(text: &str) -> Result<(String, f64), String> {
    let wrong = || "expected a metric and a number, such as cosine=0.99".to_string();
    let (name, bound) = text.split_once('=').ok_or_else(wrong)?;
    let (name, bound) = (name.trim(), bound.trim());
    let value: f64 = bound.parse().map_err(|_| wrong())?;
    match ranges::of(&format!("budget.min.{name}")) {
        Some(range) if !range.contains(value) => Err(format!("expected {name} as {range}")),
        _ => Ok((name.to_string(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_suggest_the_share_for_a_percentage() {
        assert_eq!(parse_sparsity("0.4"), Ok(0.4));
        for (text, share) in [("40", "0.4"), ("40%", "0.4"), ("2.5", "0.025")] {
            let error = parse_sparsity(text).unwrap_err();
            assert!(error.starts_with("expected a number from 0 to below 1; for") && error.ends_with(share), "{error}");
        }
        assert_eq!(parse_sparsity("-1").unwrap_err(), "expected a number from 0 to below 1");
    }

    #[test]
    fn an_image_has_a_height_and_a_width() {
        assert_eq!((parse_image("32x48"), parse_image("64")), (Ok([32, 48]), Ok([64, 64])));
        for text in ["", "0x4", "4x", "x4", "4x4x4", "-1", "65537x1", "99999999999999999999"] {
            assert!(parse_image(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_extent_has_a_name() {
        assert_eq!(parse_dim("batch=1"), Ok(("batch".into(), 1)));
        assert_eq!(parse_dim("past_length + 1 = 7"), Ok(("past_length + 1".into(), 7)));
        for text in ["", "batch", "=1", "batch=", "batch=0", "batch=-1", "batch=99999999999999999999"] {
            assert!(parse_dim(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_must_be_within_the_range_of_their_metric() {
        assert_eq!(parse_bound("cosine = 0.99"), Ok(("cosine".into(), 0.99)));
        assert_eq!(parse_bound("recall@5=7"), Ok(("recall@5".into(), 7.0)));
        for (text, range) in
            [("cosine=1.5", "from -1 to 1"), ("accuracy=98", "from 0 to 1"), ("perplexity=0", "from 1 to")]
        {
            let error = parse_bound(text).unwrap_err();
            assert!(error.contains(range), "{text}: {error}");
        }
    }
}
