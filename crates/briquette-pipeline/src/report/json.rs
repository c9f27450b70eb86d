//! Streams JSON that is safe to print on a terminal.

use briquette_core::printable::printable_json;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Writes a report as indented JSON and a line break. Control characters are escaped, see [`printable_json`].
///
/// # Errors
/// Returns errors of the writer, or invalid data if the report cannot be written as JSON.
pub(super) fn write(report: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    report.serialize(&mut Serializer::with_formatter(&mut *out, Harmless(PrettyFormatter::new())))?;
    out.write_all(b"\n")
}

/// Indents JSON and escapes control characters.
struct Harmless(PrettyFormatter<'static>);

impl Formatter for Harmless {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        out.write_all(printable_json(fragment).as_bytes())
    }

    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_escaped() {
        let values =
            serde_json::json!({ "a\u{202e}": ["x\u{1b}[31m", "é\u{e0001}", {}, []], "b": { "c": 1.5, "d": null } });
        let mut found = Vec::new();
        write(&values, &mut found).unwrap();
        let expected = printable_json(&serde_json::to_string_pretty(&values).unwrap()).into_owned() + "\n";
        assert_eq!(String::from_utf8(found).unwrap(), expected);
    }
}
