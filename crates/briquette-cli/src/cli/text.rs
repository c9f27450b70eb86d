//! The only place that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use briquette::core::printable::{printable, printable_json, printable_lines};
use briquette::pipeline::report::columns::wrap_hanging;
use briquette::pipeline::report::width::width as columns_of;
use briquette::{Error, Result};
use serde::Serialize;
use std::borrow::Cow;
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

/// Writes findings to stdout like [`write`]; lines that are wider than the terminal are broken at spaces.
///
/// # Errors
/// See [`print`].
pub(crate) fn write_folded(put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let (has_color, limit) = (has_color(), width());
    write_as(&|lines| folded(&printable_lines(lines, has_color), limit).into_owned(), put)
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

/// The columns of a terminal whose size is not known.
const USUAL_WIDTH: usize = 80;

/// The columns of the terminal on stdout, or those that COLUMNS gives. No limit where stdout is no terminal: a program
/// that reads the output needs all of it.
pub(crate) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let seen = || terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| usize::from(columns.0));
    asked.or_else(seen).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)
}

/// Lines of text, broken at spaces where one is wider than `limit`. Lines with colours are as they should be already.
fn folded(text: &str, limit: usize) -> Cow<'_, str> {
    let is_wide = |line: &str| !line.contains('\x1b') && columns_of(line) > limit;
    if !text.lines().any(is_wide) {
        return text.into();
    }
    let fold = |line: &str| match is_wide(line) {
        true => wrap_hanging(line, limit, line.len() - line.trim_start_matches(' ').len()).join("\n"),
        false => line.into(),
    };
    let end = if text.ends_with('\n') { "\n" } else { "" };
    (text.lines().map(fold).collect::<Vec<String>>().join("\n") + end).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_line_is_broken_at_spaces_and_keeps_its_indent() {
        let text = "short\n  some words that are wide\n\nend\n";
        assert_eq!(folded(text, 14), "short\n  some words\n  that are\n  wide\n\nend\n");
        assert_eq!(folded(text, usize::MAX), text);
        assert_eq!(folded("\x1b[1ma coloured line\x1b[0m\n", 5), "\x1b[1ma coloured line\x1b[0m\n");
    }
}
