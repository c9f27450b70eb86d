//! Step sizes with a factor for each row.

use super::coded::block_bytes;
use briquette_core::encoded::CodeBlocks;
use briquette_core::entropy::counts_of;
use briquette_core::{Grid, Rows, simd};
use briquette_methods::quant::range;
use std::sync::Arc;

/// The factors of a tensor's step size in each row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSteps {
    /// Base-2 logarithms of the factors, in eighths, one for each row.
    pub eighths: Arc<Vec<i8>>,
    /// The mean square of the factors, weighted by how much the errors of each row matter.
    pub mean_square: f64,
}

impl RowSteps {
    /// Returns the bytes of a tensor's blocks and scales at a step size, and the base-2 logarithm of the root mean
    /// square of the steps.
    ///
    /// `values` are every `every`-th row, `step` is a base-2 logarithm, and `codes` a buffer. Each block is counted
    /// apart, because rows with similar factors are often near each other.
    pub(super) fn measure(&self, values: &[f32], rows: Rows, every: usize, step: f64, codes: &mut [i8]) -> (f64, f64) {
        let n_cols = rows.n_cols.max(1);
        let sampled: Vec<i8> = self.eighths.iter().step_by(every).copied().collect();
        let affines = range::row_steps(values, n_cols, step.exp2() as f32, &sampled, Grid::INT8);
        for ((row, codes), &affine) in values.chunks_exact(n_cols).zip(codes.chunks_exact_mut(n_cols)).zip(&affines) {
            simd::quantize(row, affine, Grid::INT8, codes);
        }
        let blocks = CodeBlocks::new(rows.n_rows, rows.n_cols);
        let share = rows.n_elements() as f64 / values.len().max(1) as f64;
        let n_sampled = blocks.rows(0).len().div_ceil(every).max(1);
        let of_block = |codes: &[i8]| block_bytes(&counts_of(bytemuck::cast_slice(codes)), share, 1.0);
        let coded: f64 = codes.chunks(n_sampled * n_cols).map(of_block).sum();
        let n_scales = rows.n_rows as f64;
        (coded.min((rows.n_elements() + 8 * blocks.len()) as f64) + n_scales, step + self.mean_square.log2() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_factor_of_half_of_the_rows_saves_half_a_bit_for_each_octave() {
        let rows = Rows::plain(2048, 256);
        let values: Vec<f32> = (0..2048 * 256_i64).map(|at| ((at * 7919 % 10_007) as f32 - 5003.0) / 5003.0).collect();
        let mut codes = vec![0; values.len()];
        let mut bytes = |eighths: Vec<i8>| {
            RowSteps { eighths: Arc::new(eighths), mean_square: 4.0 }.measure(&values, rows, 1, -5.0, &mut codes)
        };
        let (plain, scale) = bytes(vec![0; 2048]);
        let (halved, _) = bytes((0..2048).map(|row| if row < 1024 { 0 } else { 8 }).collect());
        assert!((scale + 4.0).abs() < 1e-12);
        let saved = 8.0 * (plain - halved) / values.len() as f64;
        assert!((saved - 0.5).abs() < 0.02, "{saved} bits for each weight");
    }
}
