//! `TensorProto`: type, shape and place of a tensor's data.

use super::fields::FieldReader;
use super::wire::WireValue;
use briquette_core::shape::MAX_RANK;
use briquette_core::{DType, Error, Result};
use std::ops::Range;

/// The numbers of 4-bit integers in `TensorProto.DataType`.
pub(super) const UINT4: i64 = 21;
pub(super) const INT4: i64 = 22;

/// A tensor of a model. Its data stays in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensor {
    /// The name; empty for attributes.
    pub name: String,
    /// The number of the element type in `TensorProto.DataType`.
    pub data_type: i64,
    /// Extents.
    pub shape: Vec<usize>,
    /// The place of the elements.
    pub data: TensorData,
}

/// The place of a tensor's elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TensorData {
    /// Nowhere: a tensor without elements.
    #[default]
    Absent,
    /// Little-endian elements in one span of the file.
    Span(Range<u64>),
    /// Little-endian elements in several spans of the file.
    Spans(Vec<Range<u64>>),
    /// Integers of variable length. Each is a span of packed integers, or one integer.
    Varints(Vec<Varints>),
    /// Texts.
    Texts,
    /// A range of another file.
    External {
        /// The path, relative to the model.
        location: String,
        /// The first byte.
        offset: u64,
        /// Number of bytes; the rest of the file where absent.
        length: Option<u64>,
    },
}

/// Integers of variable length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Varints {
    /// One integer.
    One(u64),
    /// Packed integers.
    Packed(Range<u64>),
}

impl Tensor {
    /// The element type, if safetensors has it too.
    pub fn dtype(&self) -> Option<DType> {
        Some(match self.data_type {
            1 => DType::F32,
            2 => DType::U8,
            3 => DType::I8,
            4 => DType::U16,
            5 => DType::I16,
            6 => DType::I32,
            7 => DType::I64,
            9 => DType::Bool,
            10 => DType::F16,
            11 => DType::F64,
            12 => DType::U32,
            13 => DType::U64,
            16 => DType::BF16,
            17 => DType::F8E4M3,
            18 => DType::F8E4M3Fnuz,
            19 => DType::F8E5M2,
            20 => DType::F8E5M2Fnuz,
            24 => DType::F8E8M0,
            _ => return None,
        })
    }

    /// Returns type and extents as checkpoints list them: pairs of 4-bit integers are bytes.
    pub fn listed(&self) -> Option<(DType, Vec<usize>)> {
        match self.data_type {
            UINT4 | INT4 => Some((DType::U8, vec![self.n_elements()?.div_ceil(2)])),
            _ => Some((self.dtype().filter(|dtype| *dtype != DType::F4)?, self.shape.clone())),
        }
    }

    /// Returns the number of elements; `None` if it overflows.
    pub fn n_elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// - Input: it is damaged, has a negative extent, or has its data twice.
    /// - Io: the file cannot be read.
    pub(super) fn read(from: &mut FieldReader, span: Range<u64>) -> Result<Self> {
        from.charge(size_of::<Self>())?;
        let (mut rest, mut found, mut parts) = (span, Self::default(), EntryParts::default());
        let mut extents = Vec::new();
        while let Some(field) = from.wire.field(&mut rest)? {
            match (field.number, field.value) {
                (1, value) => from.integers(&value, &mut extents)?,
                (2, WireValue::Varint(value)) => found.data_type = value.cast_signed(),
                (8, WireValue::Span(span)) => found.name = from.text(&span)?,
                (9, WireValue::Span(span)) => parts.raw = Some(span),
                (4 | 10, WireValue::Fixed(span) | WireValue::Span(span)) if !span.is_empty() => {
                    from.charge(size_of::<Range<u64>>())?;
                    parts.fixed.push(span);
                }
                (5 | 7 | 11, value) => parts.push_integers(from, value)?,
                (6, _) => parts.has_texts = true,
                (13, WireValue::Span(span)) => parts.push_entry(from, span)?,
                (14, WireValue::Varint(value)) => parts.is_external = value == 1,
                _ => {}
            }
        }
        let negative =
            |name: &str| Error::input("has a negative extent; the file is damaged").at(format_args!("tensor {name:?}"));
        let shape: Option<Vec<usize>> = extents.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        found.shape = shape.ok_or_else(|| negative(&found.name))?;
        if found.shape.len() > MAX_RANK {
            let message = format!("found {} dimensions, expected at most {MAX_RANK}", found.shape.len());
            return Err(Error::input(message).at(format_args!("tensor {:?}", found.name)));
        }
        found.data = parts.data().map_err(|error| error.at(format_args!("tensor {:?}", found.name)))?;
        Ok(found)
    }
}

/// The data fields of a tensor.
#[derive(Default)]
struct EntryParts {
    raw: Option<Range<u64>>,
    fixed: Vec<Range<u64>>,
    integers: Vec<Varints>,
    has_texts: bool,
    is_external: bool,
    location: Option<String>,
    offset: u64,
    length: Option<u64>,
}

impl EntryParts {
    fn push_integers(&mut self, from: &mut FieldReader, value: WireValue) -> Result<()> {
        from.charge(size_of::<Varints>())?;
        match value {
            WireValue::Varint(value) => self.integers.push(Varints::One(value)),
            WireValue::Span(span) if !span.is_empty() => self.integers.push(Varints::Packed(span)),
            _ => {}
        }
        Ok(())
    }

    /// Reads a key and a value of the place in another file.
    fn push_entry(&mut self, from: &mut FieldReader, span: Range<u64>) -> Result<()> {
        let (key, value) = string_pair(from, span)?;
        let number = |value: &str| {
            let message =
                format!("its external data has {key} {value:?}, expected a number of bytes; the file is damaged");
            value.parse().map_err(|_| Error::input(message))
        };
        match key.as_str() {
            "location" => self.location = Some(value),
            "offset" => self.offset = number(&value)?,
            "length" => self.length = Some(number(&value)?),
            _ => {}
        }
        Ok(())
    }

    fn data(self) -> Result<TensorData> {
        let raw = self.raw.filter(|span| !span.is_empty());
        let n = [raw.is_some(), !self.fixed.is_empty(), !self.integers.is_empty(), self.has_texts, self.is_external];
        if n.into_iter().filter(|is_there| *is_there).count() > 1 {
            return Err(Error::input("has its data in two fields; the file is damaged"));
        }
        if self.is_external {
            let location = self.location.ok_or_else(|| Error::input("its external data has no location"))?;
            return Ok(TensorData::External { location, offset: self.offset, length: self.length });
        }
        Ok(match (raw, <[_; 1]>::try_from(self.fixed)) {
            (Some(span), _) => TensorData::Span(span),
            (None, Ok([span])) => TensorData::Span(span),
            (None, Err(spans)) if !spans.is_empty() => TensorData::Spans(spans),
            _ if !self.integers.is_empty() => TensorData::Varints(self.integers),
            _ if self.has_texts => TensorData::Texts,
            _ => TensorData::Absent,
        })
    }
}

/// Reads a key and a value.
///
/// # Errors
/// See [`FieldReader::text`].
pub(super) fn string_pair(from: &mut FieldReader, span: Range<u64>) -> Result<(String, String)> {
    let (mut rest, mut found) = (span, <(String, String)>::default());
    while let Some(field) = from.wire.field(&mut rest)? {
        match (field.number, field.value) {
            (1, WireValue::Span(span)) => found.0 = from.text(&span)?,
            (2, WireValue::Span(span)) => found.1 = from.text(&span)?,
            _ => {}
        }
    }
    Ok(found)
}
