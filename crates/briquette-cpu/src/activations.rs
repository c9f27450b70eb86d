//! What activations are: floats of three types, rounded to codes on one of three grids.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// How values are mapped to codes of 0 to 255: `x = (code - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ActivationGrid {
    /// `scale = max |x| / 127`, `zero = 128`.
    Symmetric,
    /// `scale = max |x| / 127.5`, `zero = 128`: as the compressed-tensors library has it. On a GPU it is [`Symmetric`](Self::Symmetric).
    SymmetricFull,
    /// `scale = (max - min) / 255` over a range widened to include 0, `zero = round(-min / scale)`.
    #[default]
    Asymmetric,
}

/// Floats that rows are made of: f32, f16 and bf16.
pub trait ActivationElement: Copy + Send + Sync {
    /// The row as f32, in `scratch` where it is not f32 already.
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
