//! Rows of codes that a product writes.

use std::ops::Range;

/// How outputs become codes: `clamp(round(value · factor + shift))`, with a factor and a shift of each output.
#[derive(Clone, Copy)]
pub(crate) struct CodeRounding<'a> {
    /// The scale of the inputs over that of the outputs, times the scale of the output's weights and its factor.
    pub(crate) factors: &'a [f32],
    /// The bias in steps of the outputs, plus their zero point.
    pub(crate) shifts: &'a [f32],
    /// The zero point of the inputs.
    pub(crate) zero: i32,
    /// The lowest and the highest code.
    pub(crate) bounds: [f32; 2],
}

impl CodeRounding<'_> {
    /// Returns the same for some of the outputs.
    pub(crate) fn of(&self, outputs: Range<usize>) -> Self {
        Self { factors: &self.factors[outputs.clone()], shifts: &self.shifts[outputs], ..*self }
    }
}

/// Rows of codes, `stride` bytes apart.
pub(crate) struct RoundedRows<'a> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) stride: usize,
}
