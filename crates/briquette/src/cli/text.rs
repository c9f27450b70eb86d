//! The only place that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette::core::printable::{printable, printable_json, printable_lines};
use briquette::{Error, Result};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

/// Writes lines to stdout, colours where it may have any and nothing else that a terminal would obey. Where a name must
/// not break its line, it has been made [`printable`] before.
///
/// # Errors
/// Io, where what it leads to is full.
pub(crate) fn print(text: &str) -> Result<()> {
    write(&printable_lines(text, has_color()))
}

/// Writes a value to stdout as JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<()> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Error::bug(format!("JSON: {error}")))?;
    write(&(printable_json(&json) + "\n"))
}

/// Writes to stdout; a reader that has gone away is not an error.
fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write", Path::new("stdout"), error))
        }
        _ => Ok(()),
    }
}

/// Writes one line to stderr.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "briquette: {}", printable(line));
}

/// Whether stdout may have colours: a terminal, and NO_COLOR not set.
pub(crate) fn has_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns: as COLUMNS says, of the terminal that stdout is, or 100.
pub(crate) fn width() -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let seen = || terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| usize::from(columns.0));
    asked.or_else(seen).unwrap_or(100)
}
