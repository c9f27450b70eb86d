//! The only place that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette::{Error, Result};
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::path::Path;

/// Writes to stdout; a reader that has gone away is not an error.
///
/// # Errors
/// Io, where what it leads to is full.
pub(crate) fn print(text: &str) -> Result<()> {
    write(|out| out.write_all(text.as_bytes()))
}

/// Writes to stdout bit by bit what may be too long to be in memory at once.
///
/// # Errors
/// As [`print`].
pub(crate) fn write(put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match put(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write", Path::new("stdout"), error))
        }
        _ => Ok(()),
    }
}

/// Writes a value to stdout as JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    write(|out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Writes one line to stderr.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "briquette: {line}");
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
