//! The keys that a kind of stage has.

use crate::raw::RawStage;
use briquette_core::{Error, Result};

/// Refuses a key that this kind of stage does not have. Which tensors it is about, every stage may say.
pub(crate) fn check_keys(raw: &RawStage, own: &[&str]) -> Result<()> {
    const SHARED: [&str; 4] = ["kind", "include", "exclude", "roles"];
    let found = serde_json::to_value(raw).map_err(|error| Error::bug(format!("the stage: {error}")))?;
    let is_known = |key: &&String| SHARED.contains(&key.as_str()) || own.contains(&key.as_str());
    let unknown = found.as_object().and_then(|keys| keys.keys().find(|key| !is_known(key)));
    unknown.map_or(Ok(()), |key| refuse(key, &Some(()), &raw.kind))
}

/// A key that this kind of stage does not have.
pub(crate) fn refuse<T>(key: &str, value: &Option<T>, kind: &str) -> Result<()> {
    match value {
        Some(_) => Err(Error::config(format!("{key}: a {kind} stage has no such key; remove it"))),
        None => Ok(()),
    }
}
