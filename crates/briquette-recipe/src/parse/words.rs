//! Parses values that several stages share: a known word, a share, or an absent key.

use briquette_core::{Error, Result};
use briquette_methods::prune::Ratio;
use briquette_methods::quant::Scheme;

/// Returns the value of a word, or an error that lists the known words.
pub(crate) fn one_of<T: Clone>(key: &str, found: &str, known: &[(&'static str, T)]) -> Result<T> {
    if let Some((_, value)) = known.iter().find(|(name, _)| *name == found) {
        return Ok(value.clone());
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let hint = briquette_core::pattern::nearest(found, names.iter().copied())
        .map_or(String::new(), |name| format!("; did you mean {name:?}?"));
    Err(Error::config(format!("{key}: found {found:?}, expected one of {}{hint}", names.join(", "))))
}

/// Returns a share. The table of ranges was checked before, with a narrower range for some keys.
pub(crate) fn ratio_of(key: &str, value: f64) -> Result<Ratio> {
    Ratio::new(value).ok_or_else(|| Error::config(format!("{key}: found {value}, expected a number from 0 to 1")))
}

/// Returns a share from 0 to below 1, set in code.
pub(crate) fn finite_share(key: &str, value: f64) -> Result<Ratio> {
    let wrong = || Error::config(format!("{key}: found {value}, expected a number from 0 to below 1"));
    Ratio::new(value).filter(|ratio| ratio.get() < 1.0).ok_or_else(wrong)
}

/// Returns the scheme with this name.
pub(crate) fn parse_scheme(key: &str, name: &str) -> Result<Scheme> {
    name.parse().map_err(|error: briquette_methods::quant::UnknownScheme| Error::config(format!("{key}: {error}")))
}

/// Refuses a key that this kind of stage does not have.
pub(crate) fn refuse<T>(key: &str, value: &Option<T>, kind: &str) -> Result<()> {
    match value {
        Some(_) => Err(Error::config(format!("{key}: a {kind} has no such key; remove it"))),
        None => Ok(()),
    }
}
