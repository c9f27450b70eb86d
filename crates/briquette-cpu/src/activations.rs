//! Types and quantization grids of activations.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A grid of values with codes from 0 to 255: `x = (code − zero) · scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeGrid {
    /// The step between neighbouring values; above 0.
    pub scale: f32,
    /// The code of 0.
    pub zero: u8,
}

/// How values map to codes from 0 to 255: `x = (code - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ActivationGrid {
    /// `scale = max |x| / 127`, `zero = 128`.
    Symmetric,
    /// `scale = max |x| / 127.5`, `zero = 128`, as in compressed-tensors. On a GPU,
    /// [`Symmetric`](Self::Symmetric) is used instead.
    SymmetricFull,
    /// `scale = (max - min) / 255` over a range widened to include 0, `zero = round(-min / scale)`.
    #[default]
    Asymmetric,
    /// The same scale and zero point for all rows. Values outside of the range get its ends, and NaN becomes any code. Linear layers of int8
    /// codes have it.
    Fixed(CodeGrid),
}

impl ActivationGrid {
    /// Returns whether rows are not searched for their range.
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_))
    }
}

/// How the inputs of a layer become codes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InputRounding<'a> {
    /// The grid of the codes.
    pub grid: ActivationGrid,
    /// Scales of columns, which multiply the inputs before they are rounded; empty if there are none.
    pub columns: &'a [f32],
}

impl From<ActivationGrid> for InputRounding<'_> {
    fn from(grid: ActivationGrid) -> Self {
        Self { grid, columns: &[] }
    }
}

/// Element types of activations: f32, f16 and bf16.
pub trait ActivationElement: Copy + Send + Sync {
    /// Returns the row as f32. A row of another type is converted into `scratch`.
    fn widened<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];
}

impl ActivationElement for f32 {
    fn widened<'a>(row: &'a [Self], _scratch: &'a mut Vec<f32>) -> &'a [f32] {
        row
    }
}

impl ActivationElement for f16 {
    fn widened<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(row.len(), 0.0);
        row.convert_to_f32_slice(scratch);
        scratch
    }
}

impl ActivationElement for bf16 {
    fn widened<'a>(row: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(row.len(), 0.0);
        briquette_core::simd::widen_bf16(bytemuck::cast_slice(row), scratch);
        scratch
    }
}
