//! Walks over the fields of a protobuf message in a file.

use crate::InputFile;
use briquette_core::{Error, Result};
use std::ops::Range;

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldValue {
    /// A number.
    Int(u64),
    /// A 32- or 64-bit value, which this program does not need.
    Fixed,
    /// Bytes, by their place in the file: a string, a message, or raw data.
    Bytes(Range<u64>),
}

/// The fields of a message at a place in a file.
pub(super) struct WireFields<'a> {
    file: &'a InputFile,
    place: Range<u64>,
}

impl<'a> WireFields<'a> {
    /// The fields of the message at this place.
    pub(super) fn new(file: &'a InputFile, place: Range<u64>) -> Self {
        Self { file, place }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::input(format!("{what} at byte {}; the file is damaged", self.place.start)).at(self.file.path().display())
    }

    /// Reads the next field with its number; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<(u64, FieldValue)>> {
        if self.place.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Int(self.varint()?),
            1 => self.skip(8).map(|_| FieldValue::Fixed)?,
            5 => self.skip(4).map(|_| FieldValue::Fixed)?,
            2 => {
                let n_bytes = self.varint()?;
                FieldValue::Bytes(self.skip(n_bytes)?)
            }
            kind => return Err(self.damaged(&format!("found wire type {kind}"))),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn skip(&mut self, n_bytes: u64) -> Result<Range<u64>> {
        let start = self.place.start;
        match start.checked_add(n_bytes).filter(|end| *end <= self.place.end) {
            Some(end) => {
                self.place.start = end;
                Ok(start..end)
            }
            None => Err(self.damaged(&format!("a field of {n_bytes} bytes passes the end of its message"))),
        }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let at = self.skip(1)?.start;
            let mut byte = [0];
            self.file.read_at(at, &mut byte)?;
            let bits = u64::from(byte[0] & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(self.damaged("found a number of more than 64 bits"))
    }

    /// Reads a string of at most `limit` bytes.
    pub(super) fn text(&self, place: &Range<u64>, limit: u64) -> Result<String> {
        let n_bytes = place.end - place.start;
        if n_bytes > limit {
            return Err(self.damaged(&format!("found a string of {n_bytes} bytes, expected at most {limit}")));
        }
        let mut bytes = vec![0; n_bytes as usize];
        self.file.read_at(place.start, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.damaged("found a string that is not UTF-8"))
    }
}
