//! Weights whose scales are part of a factor that is applied later.

use crate::float_rows::FloatRows;
use crate::simd::{Kernel, OutputBlock, PanelColumns};
use crate::weights::{Int8Weights, sealed};
use briquette_core::simd::SimdLevel;

/// The same weights with scales of 1.
pub(super) struct Unscaled<'a, W>(pub(super) &'a W);

impl<W: Int8Weights> Int8Weights for Unscaled<'_, W> {
    fn n_out(&self) -> usize {
        self.0.n_out()
    }

    fn n_in(&self) -> usize {
        self.0.n_in()
    }

    fn n_bytes(&self) -> usize {
        self.0.n_bytes()
    }
}

impl<W: Int8Weights> sealed::Panels for Unscaled<'_, W> {
    fn columns(&self, index: usize, bias: Option<&[f32]>, columns: &mut PanelColumns) {
        self.0.columns(index, bias, columns);
        columns.scales.fill(1.0);
    }

    fn multiply(&self, kernel: &mut Kernel, index: usize, is_last: bool, columns: &PanelColumns, out: OutputBlock) {
        self.0.multiply(kernel, index, is_last, columns, out);
    }

    fn multiply_floats(
        &self,
        level: SimdLevel,
        rows: &FloatRows,
        index: usize,
        columns: &PanelColumns,
        out: OutputBlock,
    ) {
        self.0.multiply_floats(level, rows, index, columns, out);
    }

    fn unpack(&self, index: usize, codes: &mut [i8]) {
        self.0.unpack(index, codes);
    }

    fn scale(&self, _row: usize) -> f32 {
        1.0
    }
}
