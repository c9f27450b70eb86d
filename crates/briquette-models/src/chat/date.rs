//! Today's date for templates that print it.

use std::fmt::Write;

/// Formats the local time like `strftime`; `None` for an unknown code.
pub(super) fn today(format: &str) -> Option<String> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).ok()?;
    Some(text)
}
