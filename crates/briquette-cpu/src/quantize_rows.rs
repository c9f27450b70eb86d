//! Activations as 8-bit codes, with a scale and a zero point for each row.

use crate::activations::{ActivationElement, ActivationGrid, InputRounding};
use crate::float::multiply_columns;
use crate::simd::{self, RowBlock, RowQuantizer};
use briquette_core::aligned_bytes::AlignedBytes;
use briquette_core::simd::SimdLevel;
use rayon::prelude::*;

/// Quantized rows of activations, padded for the kernels.
///
/// A row takes whole lines of 64 bytes. There is memory for a multiple of 16 rows and one more, so that kernels
/// can load whole tiles from any column. The padding has unspecified values.
#[derive(Clone, Default)]
pub struct QuantizedRows {
    n_cols: usize,
    codes: AlignedBytes,
    scales: Vec<f32>,
    zeros: Vec<i32>,
    /// A few rows after the multiplication by the scales of columns.
    scaled: Vec<f32>,
}

impl QuantizedRows {
    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.scales.len()
    }

    /// Returns the number of codes in a row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the codes of a row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.codes.bytes()[row * self.stride()..][..self.n_cols]
    }

    /// Returns the scale of each row; NaN if the row has a value that is not finite.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Returns the code of 0.0 in each row.
    pub fn zeros(&self) -> &[i32] {
        &self.zeros
    }

    /// Returns the row stride: an odd number of cache lines, so that the rows of a tile use different cache
    /// sets.
    pub(crate) const fn stride(&self) -> usize {
        (self.n_cols.div_ceil(64) | 1) * 64
    }

    pub(crate) fn block(&self) -> RowBlock<'_> {
        RowBlock { codes: self.codes.bytes(), stride: self.stride(), scales: &self.scales, zeros: &self.zeros }
    }

    /// Allocates rows that the caller fills, all with one scale and zero point.
    pub(crate) fn reset(&mut self, n_rows: usize, n_cols: usize, scale: f32, zero: i32) {
        self.n_cols = n_cols;
        self.codes.make_room(n_rows.next_multiple_of(16) * self.stride());
        self.scales.clear();
        self.scales.resize(n_rows, scale);
        self.zeros.clear();
        self.zeros.resize(n_rows, zero);
    }

    /// Sets the scale and zero point of a row.
    pub(crate) fn set_scale(&mut self, row: usize, (scale, zero): (f32, i32)) {
        (self.scales[row], self.zeros[row]) = (scale, zero);
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [u8] {
        let (stride, n_cols) = (self.stride(), self.n_cols);
        &mut self.codes.bytes_mut()[row * stride..][..n_cols]
    }

    /// Replaces the rows by quantized `x`, reusing the memory.
    pub(crate) fn fill<'c, T: ActivationElement>(
        &mut self,
        level: SimdLevel,
        x: &[T],
        n_cols: usize,
        n_rows: usize,
        rounding: impl Into<InputRounding<'c>>,
    ) {
        let rounding = rounding.into();
        self.make_room(n_rows, n_cols);
        if n_cols == 0 {
            self.scales.fill(1.0);
            self.zeros.fill(0);
            return;
        }
        let (mut scratch, n_at_once) = (Vec::new(), rows_at_once(n_cols));
        for (index, rows) in x.chunks(n_at_once * n_cols).enumerate() {
            self.fill_part(level, T::widened(rows, &mut scratch), index * n_at_once, rounding);
        }
    }

    /// Allocates rows that [`fill_part`](Self::fill_part) fills, reusing the memory.
    pub(crate) fn make_room(&mut self, n_rows: usize, n_cols: usize) {
        self.n_cols = n_cols;
        let stride = self.stride();
        self.codes.make_room((n_rows.next_multiple_of(16) + 1) * stride);
        self.scales.resize(n_rows, 1.0);
        self.zeros.resize(n_rows, 0);
    }

    /// Quantizes the rows of `x` into rows starting at `first`.
    ///
    /// At most [`rows_at_once`] rows; their ranges are computed independently, which hides latency.
    pub(crate) fn fill_part<'c>(
        &mut self,
        level: SimdLevel,
        x: &[f32],
        first: usize,
        rounding: impl Into<InputRounding<'c>>,
    ) {
        let InputRounding { grid, columns } = rounding.into();
        if columns.is_empty() {
            return self.quantize_part(level, x, first, grid);
        }
        // Both the rows and their products stay in the L1 cache.
        let n_at_once = (rows_at_once(self.n_cols) / 3).max(1);
        let mut scaled = std::mem::take(&mut self.scaled);
        for (index, rows) in x.chunks(n_at_once * columns.len()).enumerate() {
            scaled.resize(rows.len(), 0.0);
            multiply_columns(level, rows, columns, &mut scaled);
            self.quantize_part(level, &scaled, first + index * n_at_once, grid);
        }
        self.scaled = scaled;
    }

    fn quantize_part(&mut self, level: SimdLevel, x: &[f32], first: usize, grid: ActivationGrid) {
        let (n_cols, stride) = (self.n_cols, self.stride());
        let mut quantizers = [RowQuantizer::ONE; MOST_AT_ONCE];
        if let ActivationGrid::Fixed(fixed) = grid {
            quantizers.fill(RowQuantizer::fixed(fixed));
        } else {
            for (row, quantizer) in x.chunks_exact(n_cols).zip(&mut quantizers) {
                *quantizer = simd::value_range(level, row, grid).scale(grid);
            }
        }
        let codes = self.codes.bytes_mut()[first * stride..].chunks_exact_mut(stride);
        for (index, ((row, codes), quantizer)) in x.chunks_exact(n_cols).zip(codes).zip(quantizers).enumerate() {
            simd::quantize(level, row, quantizer, codes);
            (self.scales[first + index], self.zeros[first + index]) = (quantizer.scale, quantizer.zero);
        }
    }
}

/// The most rows that are quantized together.
const MOST_AT_ONCE: usize = 16;

/// Returns the rows of floats that are quantized together; they stay in half of an L1 cache.
pub(crate) const fn rows_at_once(n_cols: usize) -> usize {
    let n = 6 * 1024 / if n_cols == 0 { 1 } else { n_cols };
    match n {
        0 => 1,
        1..MOST_AT_ONCE => n,
        _ => MOST_AT_ONCE,
    }
}

/// Quantizes each row of `x`, `[n_rows, n_cols]`, rounding halves to even.
///
/// Uses the instructions of `level`. A row with a NaN or an infinity gets the scale NaN, so that every result
/// of it is NaN. An all-zero row has scale 1 and codes equal to its zero point.
///
/// # Panics
/// If `x` does not have `n_rows * n_cols` values.
pub fn quantize_rows<T: ActivationElement>(
    level: SimdLevel,
    x: &[T],
    n_rows: usize,
    n_cols: usize,
    grid: ActivationGrid,
) -> QuantizedRows {
    assert_eq!(x.len(), n_rows * n_cols, "{} activations for a shape of [{n_rows}, {n_cols}]", x.len());
    let mut rows = QuantizedRows::default();
    rows.fill(level, x, n_cols, n_rows, grid);
    rows
}

/// Fake-quantizes each row of `n_cols` values in place: `(code - zero) * scale`, as in [`quantize_rows`].
///
/// # Panics
/// If `n_cols` does not divide the length of `x`.
pub fn round_rows(level: SimdLevel, x: &mut [f32], n_cols: usize, grid: ActivationGrid) {
    if x.is_empty() {
        return;
    }
    assert!(n_cols > 0 && x.len().is_multiple_of(n_cols), "{} activations in rows of {n_cols}", x.len());
    x.par_chunks_mut(n_cols).for_each_init(Vec::new, |codes, row| {
        codes.resize(n_cols, 0);
        let (scale, zero) = simd::quantize_row(level, row, grid, codes);
        for (value, &code) in row.iter_mut().zip(codes.iter()) {
            *value = (i32::from(code) - zero) as f32 * scale;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    const GRIDS: [ActivationGrid; 3] =
        [ActivationGrid::Symmetric, ActivationGrid::SymmetricFull, ActivationGrid::Asymmetric];

    fn any_value() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -3.0_f32..3.0, 1 => Just(0.0), 1 => Just(-0.0), 1 => Just(1e-42), 1 => Just(-1e-37), 1 => Just(3e38),
            1 => Just(-3e38),
        ]
    }

    fn all_paths_agree<T: ActivationElement>(x: &[T], n_rows: usize, n_cols: usize, grid: ActivationGrid) {
        let reference = quantize_rows(SimdLevel::SCALAR, x, n_rows, n_cols, grid);
        for level in SimdLevel::available() {
            let rows = quantize_rows(level, x, n_rows, n_cols, grid);
            assert_eq!(rows.zeros(), reference.zeros(), "{level}");
            for row in 0..n_rows {
                assert_eq!(rows.scales()[row].to_bits(), reference.scales()[row].to_bits(), "{level}");
                assert_eq!(rows.row(row), reference.row(row), "{level} {grid:?} {:?}", rows.scales()[row]);
            }
        }
    }

    proptest! {
        #[test]
        fn every_path_quantizes_as_the_reference_does(n_rows in 0_usize..4, n_cols in 0_usize..200, x in prop::collection::vec(any_value(), 600), tiny: bool) {
            let factor = if tiny { 1e-37 } else { 1.0 };
            let x: Vec<f32> = x[..n_rows * n_cols].iter().map(|value| value * factor).collect();
            let x16: Vec<f16> = x.iter().copied().map(f16::from_f32).collect();
            let xb: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
            for grid in GRIDS {
                all_paths_agree(&x, n_rows, n_cols, grid);
                all_paths_agree(&x16, n_rows, n_cols, grid);
                all_paths_agree(&xb, n_rows, n_cols, grid);
            }
        }

        #[test]
        fn the_error_is_at_most_half_a_step(x in prop::collection::vec(-1e3_f32..1e3, 1..100)) {
            for grid in GRIDS {
                let rows = quantize_rows(SimdLevel::SCALAR, &x, 1, x.len(), grid);
                for (&code, &value) in rows.row(0).iter().zip(&x) {
                    let back = (i32::from(code) - rows.zeros()[0]) as f32 * rows.scales()[0];
                    // The zero point is rounded too, so the ends of an asymmetric range may be half a step
                    // outside.
                    prop_assert!((back - value).abs() <= 1.001 * rows.scales()[0], "{} {}", back, value);
                }
            }
        }
    }

    #[test]
    fn a_fixed_grid_is_the_same_for_all_rows_and_clamps() {
        let grid = ActivationGrid::Fixed(crate::CodeGrid { scale: 0.5, zero: 10 });
        let x = [0.0, 0.24, -0.26, 1e30, -1e30, f32::NAN, 122.5, 122.6, 0.75, -5.0, 200.0, f32::INFINITY];
        for level in SimdLevel::available() {
            let rows = quantize_rows(level, &x, 2, 6, grid);
            assert_eq!((rows.scales(), rows.zeros()), (&[0.5; 2][..], &[10; 2][..]));
            // Halves are rounded to even.
            assert_eq!(
                [&rows.row(0)[..5], rows.row(1)].concat(),
                [10, 10, 9, 255, 0, 255, 255, 12, 0, 255, 255],
                "{level}"
            );
        }
    }

    #[test]
    fn a_row_that_is_not_finite_has_no_scale_and_a_zero_row_has_scale_one() {
        for level in SimdLevel::available() {
            for grid in GRIDS {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    for at in [0, 3, 40, 66] {
                        let mut x = vec![1.0; 2 * 67];
                        x[at] = bad;
                        let rows = quantize_rows(level, &x, 2, 67, grid);
                        assert!(rows.scales()[0].is_nan() && rows.scales()[1].is_finite(), "{level} {bad} at {at}");
                    }
                }
                let rows = quantize_rows(level, &[0.0_f32, -0.0, 0.0], 1, 3, grid);
                assert_eq!((rows.scales()[0], i32::from(rows.row(0)[1])), (1.0, rows.zeros()[0]));
            }
        }
    }
}
