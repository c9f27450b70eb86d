//! Prints results as text or as JSON.

use super::common::Common;
use super::text;
use briquette::{Error, Result};
use serde::Serialize;
use std::io::Write;

/// Prints JSON, text or nothing, as the flags say.
pub(super) fn show<T: Serialize>(common: &Common, value: &T, to_text: impl FnOnce() -> Result<String>) -> Result<u8> {
    if common.json {
        text::print_json(value)?;
    } else if !common.quiet {
        let shown = to_text()?;
        text::write_folded(|out| out.write_all(shown.as_bytes()))?;
    }
    Ok(0)
}

/// Prints JSON, text or nothing, piece by piece, because a model may have many tensors.
pub(super) fn show_long<T: Serialize>(
    common: &Common,
    value: &T,
    put_text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<u8> {
    if common.json {
        text::print_json(value)?;
    } else if !common.quiet {
        text::write_folded(put_text)?;
    }
    Ok(0)
}

/// Prints like [`show`], for results that may also be a failure; JSON then contains the error.
pub(super) fn show_and_check<T: Serialize>(
    common: &Common,
    value: &T,
    to_text: impl FnOnce() -> Result<String>,
    check: Result<()>,
) -> Result<u8> {
    match &check {
        Err(error) if common.json => {
            let mut value = serde_json::to_value(value).map_err(|error| Error::bug(format!("JSON: {error}")))?;
            value["error"] = error_json(error);
            show(common, &value, to_text)?
        }
        _ => show(common, value, to_text)?,
    };
    check.map(|()| 0)
}

/// Returns an error as JSON.
pub(super) fn error_json(error: &Error) -> serde_json::Value {
    serde_json::json!({ "kind": error.kind_name(), "message": briquette::pipeline::advised(error), "exit_code": error.exit_code() })
}
