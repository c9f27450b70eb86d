//! Activations as signed 8-bit codes in the groups of 4-bit weights.

use crate::activations::{ActivationElement, InputRounding};
use crate::group_layout::GroupLayout;
use crate::quantize_rows::QuantizedRows;
use crate::simd::{self, GroupedBlock};
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;

/// Quantized rows of activations as `code - 128`, with the sum of each group of each row.
///
/// A row takes whole lines of 64 bytes; the values of its padding are unspecified.
#[derive(Default)]
pub(crate) struct GroupedRows {
    quantized: QuantizedRows,
    layout: GroupLayout,
    codes: AlignedBytes,
    offsets: Vec<i32>,
    zeros: Vec<f32>,
}

impl GroupedRows {
    /// Replaces the rows by quantized `x`, reusing the memory.
    pub(crate) fn fill<'c, T: ActivationElement>(
        &mut self,
        level: SimdLevel,
        x: &[T],
        n_rows: usize,
        layout: GroupLayout,
        rounding: impl Into<InputRounding<'c>>,
    ) {
        self.layout = layout;
        self.quantized.fill(level, x, layout.n_in, n_rows, rounding);
        let (stride, n_groups) = (self.stride(), layout.n_groups());
        self.codes.make_room(n_rows * stride);
        self.offsets.resize(n_rows * n_groups, 0);
        let codes = self.codes.bytes_mut().chunks_exact_mut(stride);
        let offsets = self.offsets.chunks_exact_mut(n_groups.max(1));
        for (row, (codes, offsets)) in codes.zip(offsets).enumerate().take(n_rows) {
            simd::group_codes(level, self.quantized.row(row), layout, codes, offsets);
        }
        self.zeros.clear();
        self.zeros.extend(self.quantized.zeros().iter().map(|&zero| (zero - 128) as f32));
    }

    /// Returns the row stride: an odd number of cache lines, so that the rows of a tile use different cache
    /// sets.
    const fn stride(&self) -> usize {
        ((4 * self.layout.n_steps()).div_ceil(64) | 1) * 64
    }

    pub(crate) fn block(&self) -> GroupedBlock<'_> {
        GroupedBlock {
            codes: self.codes.bytes(),
            stride: self.stride(),
            n_groups: self.layout.n_groups(),
            offsets: &self.offsets,
            scales: self.quantized.scales(),
            zeros: &self.zeros,
        }
    }
}
