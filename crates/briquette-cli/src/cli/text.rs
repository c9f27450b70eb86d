//! The only place that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette::core::printable::{printable, printable_json, printable_lines};
use briquette::{Error, Result};
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anything was written to stdout: a second JSON document behind a first would be none.
static HAS_PRINTED: AtomicBool = AtomicBool::new(false);

/// Whether anything was written to stdout.
pub(crate) fn has_printed() -> bool {
    HAS_PRINTED.load(Ordering::Relaxed)
}

/// Writes lines to stdout, colours where it may have any and nothing else that a terminal would obey. Where a name must
/// not break its line, it has been made [`printable`] before.
///
/// # Errors
/// Io, where what it leads to is full.
pub(crate) fn print(text: &str) -> Result<()> {
    write(|out| out.write_all(text.as_bytes()))
}

/// Writes a piece of a line to stdout, and shows it at once; made harmless as by [`print`]. False where nobody reads it any more.
///
/// # Errors
/// As [`print`].
#[cfg(feature = "model")]
pub(crate) fn print_piece(piece: &str) -> Result<bool> {
    HAS_PRINTED.store(true, Ordering::Relaxed);
    let mut out = std::io::stdout().lock();
    match out.write_all(printable_lines(piece, false).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("cannot write", Path::new("stdout"), error)),
        Ok(()) => Ok(true),
    }
}

/// Writes to stdout bit by bit what may be too long to be in memory at once; made harmless as by [`print`].
///
/// # Errors
/// As [`print`].
pub(crate) fn write(put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let has_color = has_color();
    write_as(&|line| printable_lines(line, has_color), put)
}

/// Writes what `harmless` makes of each line. A reader that has gone away is not an error.
fn write_as(harmless: &dyn Fn(&str) -> String, put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    HAS_PRINTED.store(true, Ordering::Relaxed);
    let mut out = HarmlessLines { out: BufWriter::new(std::io::stdout().lock()), harmless, line: Vec::new() };
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
    write_as(&|lines| printable_json(lines).into_owned(), |out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Holds what is written until its line is whole, so that nothing is judged by a part of it.
struct HarmlessLines<'a, W> {
    out: W,
    harmless: &'a dyn Fn(&str) -> String,
    line: Vec<u8>,
}

impl<W: Write> Write for HarmlessLines<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.line.split_off(end + 1);
            let lines = std::mem::replace(&mut self.line, rest);
            self.out.write_all((self.harmless)(&String::from_utf8_lossy(&lines)).as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let rest = std::mem::take(&mut self.line);
        self.out.write_all((self.harmless)(&String::from_utf8_lossy(&rest)).as_bytes())?;
        self.out.flush()
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
