//! The protobuf wire format: fields of messages, as numbers and spans of the file.

use crate::InputFile;
use briquette_core::{Error, Result};
use std::ops::Range;

/// Bytes that are read at a time.
const WINDOW: u64 = 64 << 10;

/// A field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// The number in the schema.
    pub(super) number: u32,
    /// The contents.
    pub(super) value: WireValue,
}

/// The contents of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WireValue {
    /// An integer.
    Varint(u64),
    /// Eight or four little-endian bytes.
    Fixed(Range<u64>),
    /// A text, bytes, a message or packed numbers.
    Span(Range<u64>),
}

/// Reads fields from a file, a window at a time.
pub(super) struct Wire<'a> {
    file: &'a InputFile,
    window: Vec<u8>,
    start: u64,
}

impl<'a> Wire<'a> {
    /// A reader of the whole file.
    pub(super) fn new(file: &'a InputFile) -> Self {
        Self { file, window: Vec::new(), start: 0 }
    }

    /// The span of the whole file.
    pub(super) fn whole(&self) -> Range<u64> {
        0..self.file.len()
    }

    /// Takes the next field of a message from the front of `rest`; `None` at its end.
    ///
    /// # Errors
    /// - Input: the field is cut short, is longer than its message, or has an invalid type.
    /// - Io: the file cannot be read.
    pub(super) fn field(&mut self, rest: &mut Range<u64>) -> Result<Option<Field>> {
        if rest.is_empty() {
            return Ok(None);
        }
        let start = rest.start;
        let key = self.varint(rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or_else(|| damaged(start, "an invalid field number"))?;
        let value = match key & 7 {
            0 => WireValue::Varint(self.varint(rest)?),
            1 => WireValue::Fixed(take(rest, 8)?),
            2 => {
                let n = self.varint(rest)?;
                WireValue::Span(take(rest, n)?)
            }
            5 => WireValue::Fixed(take(rest, 4)?),
            other => return Err(damaged(start, &format!("wire type {other}, which ONNX does not use"))),
        };
        Ok(Some(Field { number, value }))
    }

    /// Takes an integer from the front of `rest`.
    ///
    /// # Errors
    /// See [`field`](Self::field).
    pub(super) fn varint(&mut self, rest: &mut Range<u64>) -> Result<u64> {
        let start = rest.start;
        let mut found = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte(take(rest, 1)?.start)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit of a 64-bit number.
            if shift == 63 && bits > 1 {
                break;
            }
            found |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(found);
            }
        }
        Err(damaged(start, "a number of more than 64 bits"))
    }

    /// Reads a span.
    ///
    /// # Errors
    /// See [`InputFile::read_at`].
    pub(super) fn bytes(&mut self, span: &Range<u64>) -> Result<Vec<u8>> {
        let mut found = Vec::with_capacity(usize::try_from(span.end - span.start).unwrap_or(0));
        for at in span.clone() {
            found.push(self.byte(at)?);
        }
        Ok(found)
    }

    fn byte(&mut self, at: u64) -> Result<u8> {
        let in_window = |start: u64| usize::try_from(at.wrapping_sub(start)).unwrap_or(usize::MAX);
        if let Some(&byte) = self.window.get(in_window(self.start)) {
            return Ok(byte);
        }
        let n = WINDOW.min(self.file.len().saturating_sub(at));
        self.window.resize(usize::try_from(n).unwrap_or(0), 0);
        self.file.read_at(at, &mut self.window)?;
        self.start = at;
        self.window.first().copied().ok_or_else(|| damaged(at, "the end of the file"))
    }
}

/// Takes `n` bytes from the front of a span.
fn take(rest: &mut Range<u64>, n: u64) -> Result<Range<u64>> {
    match rest.start.checked_add(n).filter(|end| *end <= rest.end) {
        Some(end) => {
            let taken = rest.start..end;
            rest.start = end;
            Ok(taken)
        }
        None => {
            let left = rest.end - rest.start;
            let message = format!("a field of {n} bytes where its message has {left} left");
            Err(damaged(rest.start, &message))
        }
    }
}

/// The error of an invalid message.
pub(super) fn damaged(at: u64, found: &str) -> Error {
    Error::input(format!("found {found} at byte {at}; the ONNX file is damaged or cut short, copy it again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_bytes<T>(bytes: &[u8], run: impl FnOnce(&mut Wire) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        std::fs::write(&path, bytes).unwrap();
        let file = InputFile::open(&path).unwrap();
        run(&mut Wire::new(&file))
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn fields(bytes: &[u8]) -> Result<Vec<Field>> {
        with_bytes(bytes, |wire| {
            let mut rest = wire.whole();
            let mut found = Vec::new();
            while let Some(field) = wire.field(&mut rest)? {
                found.push(field);
            }
            Ok(found)
        })
    }

    #[test]
    fn fields_of_each_type_are_found() {
        let bytes = b"\x08\x96\x01\x12\x03abc\x1d\x01\x02\x03\x04\x21\x01\x02\x03\x04\x05\x06\x07\x08";
        let found = fields(bytes).unwrap();
        let expected = [
            (1, WireValue::Varint(150)),
            (2, WireValue::Span(5..8)),
            (3, WireValue::Fixed(9..13)),
            (4, WireValue::Fixed(14..22)),
        ];
        assert_eq!(found, expected.map(|(number, value)| Field { number, value }));
        for n in [1, 2, 4, 5, 7, 9, 12, 15, 21] {
            assert!(fields(&bytes[..n]).is_err(), "{n} bytes");
        }
    }

    #[test]
    fn invalid_fields_are_refused_with_their_place() {
        for (bytes, phrase) in [
            (&b"\x00"[..], "field number at byte 0"),
            (b"\x0b", "wire type 3"),
            (b"\x0e", "wire type 6"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "more than 64 bits at byte 1"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 64 bits"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "18446744073709551615 bytes where its message has 0"),
            (b"\xf8\xff\xff\xff\xff\x01\x00", "field number"),
        ] {
            let error = fields(bytes).unwrap_err();
            assert!(error.exit_code() == 4 && error.to_string().contains(phrase), "{phrase}: {error}");
        }
        assert_eq!(
            fields(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap()[0].value,
            WireValue::Varint(u64::MAX)
        );
    }

    proptest! {
        #[test]
        fn any_integers_and_spans_are_found_again(parts in prop::collection::vec((1_u32..1 << 20, any::<u64>(), 0_usize..300), 0..200)) {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for (number, value, n) in parts {
                bytes.extend(varint(u64::from(number) << 3));
                bytes.extend(varint(value));
                expected.push(Field { number, value: WireValue::Varint(value) });
                bytes.extend(varint(u64::from(number) << 3 | 2));
                bytes.extend(varint(n as u64));
                let start = bytes.len() as u64;
                expected.push(Field { number, value: WireValue::Span(start..start + n as u64) });
                bytes.resize(bytes.len() + n, 0xff);
            }
            prop_assert_eq!(fields(&bytes).unwrap(), expected);
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = fields(&bytes);
        }
    }
}
