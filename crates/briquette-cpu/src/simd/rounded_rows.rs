//! Rows of codes that a product writes.

/// How outputs become codes: `clamp(round(value · factor + shift))`, where the shift of an output is its bias.
pub(crate) struct CodeRounding {
    /// The scale of the inputs over that of the outputs.
    pub(crate) factor: f32,
    /// The zero point of the inputs.
    pub(crate) zero: i32,
    /// The lowest and the highest code.
    pub(crate) bounds: [f32; 2],
}

/// Rows of codes, `stride` bytes apart.
pub(crate) struct RoundedRows<'a> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) stride: usize,
}

impl RoundedRows<'_> {
    /// Returns the first `n` codes of a row.
    #[inline]
    pub(crate) fn row(&mut self, row: usize, n: usize) -> &mut [u8] {
        &mut self.codes[row * self.stride..][..n]
    }
}
