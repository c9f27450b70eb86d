//! Arrays of images and labels.

/// Supported element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Number {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// Elements of an array. Bytes stay bytes: they are pixels, at a quarter of the memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Pixels.
    Bytes(Vec<u8>),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers other than bytes, converted to f32.
    Integers(Vec<f32>),
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self::Floats(values)
    }
}

/// A row-major array.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Values,
}

impl Number {
    fn width(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Converts little-endian bytes, padded with zeros, to a value.
    fn value(self, bytes: [u8; 8]) -> f32 {
        let [a, b, c, d, ..] = bytes;
        match self {
            Self::U8 => f32::from(a),
            Self::I8 => f32::from(a as i8),
            Self::U16 => f32::from(u16::from_le_bytes([a, b])),
            Self::I16 => f32::from(i16::from_le_bytes([a, b])),
            Self::F16 => half::f16::from_le_bytes([a, b]).to_f32(),
            Self::U32 => u32::from_le_bytes([a, b, c, d]) as f32,
            Self::I32 => i32::from_le_bytes([a, b, c, d]) as f32,
            Self::F32 => f32::from_le_bytes([a, b, c, d]),
            Self::U64 => u64::from_le_bytes(bytes) as f32,
            Self::I64 => i64::from_le_bytes(bytes) as f32,
            Self::F64 => f64::from_le_bytes(bytes) as f32,
        }
    }
}

impl Array {
    /// Parses an array; the error describes the mismatch.
    pub(crate) fn from_bytes(shape: Vec<usize>, number: Number, is_big: bool, bytes: &[u8]) -> Result<Self, String> {
        let n = shape.iter().try_fold(1_usize, |n, extent| n.checked_mul(*extent));
        let n_bytes = n.and_then(|n| n.checked_mul(number.width()));
        if n_bytes != Some(bytes.len()) {
            return Err(format!("{} bytes of elements do not fill shape {shape:?}; the file is damaged", bytes.len()));
        }
        if number == Number::U8 {
            return Ok(Self { shape, values: Values::Bytes(bytes.to_vec()) });
        }
        let element = |bytes: &[u8]| {
            let mut little = [0; 8];
            little[..bytes.len()].copy_from_slice(bytes);
            if is_big {
                little[..bytes.len()].reverse();
            }
            number.value(little)
        };
        let values = bytes.chunks_exact(number.width()).map(element).collect();
        let values = match number {
            Number::F16 | Number::F32 | Number::F64 => Values::Floats(values),
            _ => Values::Integers(values),
        };
        Ok(Self { shape, values })
    }

    /// Reverses the axes.
    pub(crate) fn reversed(self) -> Self {
        let (n, mut shape) = (self.len_of(0), self.shape);
        // Iterates in the order of the result, with the reversed strides of the source.
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        shape.reverse();
        strides.reverse();
        let source = |mut place: usize| {
            let mut offset = 0;
            for (extent, stride) in shape.iter().zip(&strides).rev() {
                offset += place % extent * stride;
                place /= extent;
            }
            offset
        };
        let floats = |values: &[f32]| (0..n).map(|place| values[source(place)]).collect();
        let values = match &self.values {
            Values::Bytes(values) => Values::Bytes((0..n).map(|place| values[source(place)]).collect()),
            Values::Floats(values) => Values::Floats(floats(values)),
            Values::Integers(values) => Values::Integers(floats(values)),
        };
        Self { shape, values }
    }

    /// Returns the number of elements behind the first `axis` axes.
    pub(crate) fn len_of(&self, axis: usize) -> usize {
        self.shape.iter().skip(axis).product()
    }

    /// Converts to labels: integers from 0.
    pub(crate) fn to_labels(&self) -> Result<Vec<usize>, String> {
        match &self.values {
            Values::Bytes(values) => Ok(values.iter().map(|&value| usize::from(value)).collect()),
            Values::Floats(values) | Values::Integers(values) => values.iter().enumerate().map(label).collect(),
        }
    }
}

fn label((index, &value): (usize, &f32)) -> Result<usize, String> {
    if value >= 0.0 && value.fract() == 0.0 && value < 16_777_216.0 {
        Ok(value as usize)
    } else {
        Err(format!("label {index} is {value}, expected an integer of at least 0"))
    }
}
