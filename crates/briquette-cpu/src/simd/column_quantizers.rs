//! The mapping of columns of floats to codes: pixels, whose channels are rows far apart.

use super::row_quantizer::{RowQuantizer, ValueRange};
use crate::activations::ActivationGrid;

/// Columns that are quantized together.
pub(crate) const COLUMNS: usize = 256;

/// The ranges of columns; see [`ValueRange`].
pub(crate) struct ColumnRanges {
    min: [f32; COLUMNS],
    max: [f32; COLUMNS],
    magnitude: [u32; COLUMNS],
}

impl Default for ColumnRanges {
    fn default() -> Self {
        Self { min: [0.0; COLUMNS], max: [0.0; COLUMNS], magnitude: [0; COLUMNS] }
    }
}

impl ColumnRanges {
    /// Adds the value of each column in one more row.
    #[inline(always)]
    pub(crate) fn add(&mut self, row: &[f32]) {
        let ranges = self.min.iter_mut().zip(&mut self.max).zip(&mut self.magnitude);
        for (&value, ((min, max), magnitude)) in row.iter().zip(ranges) {
            // NaN, which no comparison finds, has a larger magnitude than any number.
            *min = if value < *min { value } else { *min };
            *max = if value > *max { value } else { *max };
            *magnitude = (*magnitude).max(value.to_bits() & 0x7fff_ffff);
        }
    }

    /// Returns the quantizers of the first `n` columns.
    pub(crate) fn quantizers(&self, n: usize, grid: ActivationGrid) -> ColumnQuantizers {
        let range = |i: usize| ValueRange { min: self.min[i], max: self.max[i], magnitude: self.magnitude[i] };
        let columns: Vec<RowQuantizer> = (0..n).map(|i| range(i).scale(grid)).collect();
        let has_inverses = columns.iter().all(|column| column.inverse.is_finite());
        let mut found = ColumnQuantizers { inverses: [1.0; COLUMNS], zeros: [0; COLUMNS], has_inverses, columns };
        for (i, column) in found.columns.iter().enumerate() {
            (found.inverses[i], found.zeros[i]) = (column.inverse, column.zero);
        }
        found
    }
}

/// The mapping of each column to codes.
pub(crate) struct ColumnQuantizers {
    inverses: [f32; COLUMNS],
    zeros: [i32; COLUMNS],
    has_inverses: bool,
    pub(crate) columns: Vec<RowQuantizer>,
}

impl ColumnQuantizers {
    /// Quantizes the values of a row, as [`RowQuantizer::code`] does.
    #[inline(always)]
    pub(crate) fn quantize(&self, row: &[f32], codes: &mut [u8]) {
        if !self.has_inverses {
            for ((code, &value), column) in codes.iter_mut().zip(row).zip(&self.columns) {
                *code = column.code(value);
            }
            return;
        }
        let columns = self.inverses.iter().zip(&self.zeros);
        for ((code, &value), (&inverse, &zero)) in codes.iter_mut().zip(row).zip(columns) {
            *code = RowQuantizer { scale: 1.0, zero, inverse }.code(value);
        }
    }
}
