//! The only place that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette::{Error, Result};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anything was written to stdout: a second JSON document behind a first would be none.
static HAS_PRINTED: AtomicBool = AtomicBool::new(false);

/// Whether anything was written to stdout.
pub(crate) fn has_printed() -> bool {
    HAS_PRINTED.load(Ordering::Relaxed)
}

/// Writes to stdout; a reader that has gone away is not an error.
///
/// # Errors
/// Io, where what it leads to is full.
pub(crate) fn print(text: &str) -> Result<()> {
    HAS_PRINTED.store(true, Ordering::Relaxed);
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
