//! Reads texts and lists of numbers, and counts the memory of a model's structure.

use super::wire::{Wire, WireValue, damaged};
use crate::InputFile;
use briquette_core::{Error, Result};
use std::ops::Range;

/// Most memory of a model's structure: nodes, attributes, names and shapes.
const MAX_STRUCTURE_BYTES: usize = 40 << 20;
/// Longest name or other text that is read.
const MAX_TEXT_BYTES: u64 = 64 << 10;
/// Deepest nesting of graphs in attributes.
pub(super) const MAX_DEPTH: usize = 16;

/// Reads the fields of a model's messages within a limit of memory.
pub(super) struct FieldReader<'a> {
    pub(super) wire: Wire<'a>,
    left: usize,
}

impl<'a> FieldReader<'a> {
    /// A reader of a file.
    pub(super) fn new(file: &'a InputFile) -> Self {
        Self { wire: Wire::new(file), left: MAX_STRUCTURE_BYTES }
    }

    /// Counts memory of the structure.
    ///
    /// # Errors
    /// Input: the structure is larger than the limit.
    pub(super) fn charge(&mut self, n_bytes: usize) -> Result<()> {
        match self.left.checked_sub(n_bytes) {
            Some(left) => self.left = left,
            None => {
                let limit = MAX_STRUCTURE_BYTES >> 20;
                let message = format!(
                    "its nodes, names and attributes need more than {limit} MiB; store tensors as initializers"
                );
                return Err(Error::input(message));
            }
        }
        Ok(())
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Input: the text is too long or is not UTF-8.
    pub(super) fn text(&mut self, span: &Range<u64>) -> Result<String> {
        let bytes = self.bytes(span)?;
        String::from_utf8(bytes).map_err(|_| damaged(span.start, "a name that is not UTF-8"))
    }

    /// Reads a short byte string.
    ///
    /// # Errors
    /// Input: the string is too long.
    pub(super) fn bytes(&mut self, span: &Range<u64>) -> Result<Vec<u8>> {
        let n = span.end - span.start;
        if n > MAX_TEXT_BYTES {
            return Err(damaged(span.start, &format!("a name of {n} bytes, expected at most {MAX_TEXT_BYTES},")));
        }
        self.charge(usize::try_from(n).unwrap_or(usize::MAX))?;
        self.wire.bytes(span)
    }

    /// Reads an `OperatorSetIdProto`: a domain, which is empty for ONNX's own, and its version.
    ///
    /// # Errors
    /// See [`text`](Self::text).
    pub(super) fn opset(&mut self, mut rest: Range<u64>) -> Result<(String, i64)> {
        let (mut domain, mut version) = (String::new(), 0);
        while let Some(field) = self.wire.field(&mut rest)? {
            match (field.number, field.value) {
                (1, WireValue::Span(span)) => domain = self.text(&span)?,
                (2, WireValue::Varint(value)) => version = value.cast_signed(),
                _ => {}
            }
        }
        if domain == "ai.onnx" {
            domain.clear();
        }
        Ok((domain, version))
    }

    /// Adds the integers of a field: one, or packed ones.
    ///
    /// # Errors
    /// Input: there are too many, or they are cut short.
    pub(super) fn integers(&mut self, value: &WireValue, found: &mut Vec<i64>) -> Result<()> {
        match value {
            WireValue::Varint(value) => {
                self.charge(8)?;
                found.push(value.cast_signed());
            }
            WireValue::Span(span) => {
                let mut rest = span.clone();
                while !rest.is_empty() {
                    self.charge(8)?;
                    found.push(self.wire.varint(&mut rest)?.cast_signed());
                }
            }
            WireValue::Fixed(_) => {}
        }
        Ok(())
    }

    /// Adds the 32-bit floats of a field: one, or packed ones.
    ///
    /// # Errors
    /// See [`integers`](Self::integers).
    pub(super) fn floats(&mut self, value: &WireValue, found: &mut Vec<f32>) -> Result<()> {
        let (WireValue::Fixed(span) | WireValue::Span(span)) = value else { return Ok(()) };
        let n = span.end - span.start;
        if !n.is_multiple_of(4) {
            return Err(damaged(span.start, "floats of a fraction of four bytes"));
        }
        self.charge(usize::try_from(n).unwrap_or(usize::MAX))?;
        let bytes = self.wire.bytes(span)?;
        found.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        Ok(())
    }
}
