//! Values of small tensors, such as shapes, axes and scalars.

use super::external;
use super::tensor::{Tensor, TensorData, Varints};
use super::wire::Wire;
use crate::InputFile;
use briquette_core::{DType, Result};
use half::{bf16, f16};
use std::ops::Range;

/// The values of a small tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Extents.
    pub shape: Vec<usize>,
    /// Whether the elements are integers or truth values.
    pub is_integer: bool,
    /// The elements. Integers above 2⁵³ are rounded.
    pub values: Vec<f64>,
}

impl Tensor {
    /// Reads the values of a tensor with at most `limit` elements; `None` for larger tensors and other types.
    ///
    /// # Errors
    /// - Input: the data is damaged, too short, or in a file outside of the model's directory.
    /// - Io: a file cannot be read.
    pub fn constant(&self, model: &InputFile, limit: usize) -> Result<Option<Constant>> {
        let (Some(dtype), Some(n)) = (self.dtype(), self.n_elements()) else { return Ok(None) };
        if n > limit {
            return Ok(None);
        }
        let Some(values) = self.values(model, dtype, n)?.filter(|values| values.len() == n) else { return Ok(None) };
        let is_integer = !dtype.is_weight();
        Ok(Some(Constant { shape: self.shape.clone(), is_integer, values }))
    }

    fn values(&self, model: &InputFile, dtype: DType, n: usize) -> Result<Option<Vec<f64>>> {
        let n_bytes = dtype.n_bytes(n).unwrap_or(usize::MAX) as u64;
        let spans = match &self.data {
            TensorData::Absent => Vec::new(),
            TensorData::Span(span) => vec![span.clone()],
            TensorData::Spans(spans) => spans.clone(),
            TensorData::Varints(parts) => return Ok(Some(varints(model, parts, dtype, n)?)),
            TensorData::Texts => return Ok(None),
            TensorData::External { location, offset, .. } => {
                let file = external::open(model, location)?;
                let Some(end) = offset.checked_add(n_bytes).filter(|end| *end <= file.len()) else { return Ok(None) };
                return Ok(decoded(&Wire::new(&file).bytes(&(*offset..end))?, dtype));
            }
        };
        if spans.iter().map(|span| span.end - span.start).sum::<u64>() != n_bytes {
            return Ok(None);
        }
        let (mut wire, mut bytes) = (Wire::new(model), Vec::new());
        for span in &spans {
            bytes.extend(wire.bytes(span)?);
        }
        Ok(decoded(&bytes, dtype))
    }
}

/// Reads at most `n` integers, and converts the bit patterns of 16-bit floats.
fn varints(model: &InputFile, parts: &[Varints], dtype: DType, n: usize) -> Result<Vec<f64>> {
    let mut wire = Wire::new(model);
    let mut found: Vec<u64> = Vec::new();
    for part in parts {
        match part {
            Varints::One(value) => found.push(*value),
            Varints::Packed(span) => {
                let mut rest: Range<u64> = span.clone();
                // One more than expected shows that the count is wrong.
                while !rest.is_empty() && found.len() <= n {
                    found.push(wire.varint(&mut rest)?);
                }
            }
        }
    }
    let value = |bits: u64| match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::U64 | DType::U32 => bits as f64,
        _ => bits.cast_signed() as f64,
    };
    Ok(found.into_iter().map(value).collect())
}

/// Decodes little-endian elements; `None` for other types.
fn decoded(bytes: &[u8], dtype: DType) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
    }
    Some(match dtype {
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::F32 => each(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        DType::F16 => each(bytes, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DType::BF16 => each(bytes, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        DType::I64 => each(bytes, |bytes| i64::from_le_bytes(bytes) as f64),
        DType::I32 => each(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        DType::I16 => each(bytes, |bytes| i16::from_le_bytes(bytes).into()),
        DType::I8 => each(bytes, |bytes| i8::from_le_bytes(bytes).into()),
        DType::U64 => each(bytes, |bytes| u64::from_le_bytes(bytes) as f64),
        DType::U32 => each(bytes, |bytes| u32::from_le_bytes(bytes).into()),
        DType::U16 => each(bytes, |bytes| u16::from_le_bytes(bytes).into()),
        DType::U8 | DType::Bool => each(bytes, |[byte]| byte.into()),
        _ => return None,
    })
}
