//! The only module that prints.
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

/// Whether anything was written to stdout; a second JSON document after the first would be invalid.
static HAS_PRINTED: AtomicBool = AtomicBool::new(false);

/// Returns whether anything was written to stdout.
pub(crate) fn has_printed() -> bool {
    HAS_PRINTED.load(Ordering::Relaxed)
}

/// Writes lines to stdout. Colours remain if the terminal supports them; other control characters are escaped.
///
/// A name that must stay in its line is made [`printable`] before.
///
/// # Errors
/// Io: stdout cannot be written.
pub(crate) fn print(text: &str) -> Result<()> {
    write(|out| out.write_all(text.as_bytes()))
}

/// Writes a part of a line to stdout and flushes it, escaped like in [`print`]. Returns false if the reader is
/// gone.
///
/// # Errors
/// See [`print`].
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

/// Writes a long text to stdout piece by piece, escaped like in [`print`].
///
/// # Errors
/// See [`print`].
pub(crate) fn write(put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let has_color = has_color();
    write_as(&|line| printable_lines(line, has_color), put)
}

/// Writes text to stdout like [`write`]; lines wider than the terminal are wrapped at spaces.
///
/// # Errors
/// See [`print`].
pub(crate) fn write_folded(put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let (has_color, limit) = (has_color(), width());
    write_as(&|lines| folded(&printable_lines(lines, has_color), limit).into_owned(), put)
}

/// Writes each line after `harmless`. A closed pipe is not an error.
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
/// See [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    write_as(&|lines| printable_json(lines).into_owned(), |out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

/// Buffers text until its line is complete, so that escaping sees whole lines.
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
    let _ = std::io::stderr().write_all(complaint(line).as_bytes());
}

/// Returns a line of this program, without control characters.
pub(crate) fn complaint(line: &str) -> String {
    format!("briquette: {}\n", printable(line))
}

/// Returns whether stdout may have colours: it is a terminal and NO_COLOR is not set.
pub(crate) fn has_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Number of columns if the terminal size is unknown.
const USUAL_WIDTH: usize = 80;

/// Returns the number of columns of the terminal on stdout, or of COLUMNS.
///
/// There is no limit if stdout is not a terminal, because a program that reads the output needs all of it.
pub(crate) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let seen = || terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| usize::from(columns.0));
    asked.or_else(seen).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)
}

/// Wraps lines wider than `limit` at spaces. Lines with colours are already wrapped.
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
    fn a_wide_line_is_wrapped_at_spaces_and_keeps_its_indent() {
        let text = "short\n  some words that are wide\n\nend\n";
        assert_eq!(folded(text, 14), "short\n  some words\n  that are\n  wide\n\nend\n");
        assert_eq!(folded(text, usize::MAX), text);
        assert_eq!(folded("\x1b[1ma coloured line\x1b[0m\n", 5), "\x1b[1ma coloured line\x1b[0m\n");
    }
}
