//! `y = x · wᵀ` in f32 with row-major weights, for an embedding table that serves as the head.

use crate::float_rows::for_float_rows;
use crate::linear::assert_shapes;
use crate::panels::threads_for;
use crate::simd::{self, MatrixView, OutputBlock, PANEL};
use briquette_core::simd::{Isa, SimdLevel, active_level};

/// Below this many multiplications, waking another thread costs more than it saves.
const PAYS: usize = 1 << 20;

/// Computes `y[m, o] = Σᵢ x[m, i] * weights[o, i]`.
///
/// A library would rearrange all weights in each call, which takes longer than the product if there are few
/// rows.
///
/// # Panics
/// If `x` is not `[n_rows, n_in]`, `weights` not `[n_out, n_in]` or `y` not `[n_rows, n_out]`.
pub fn float_product(x: &[f32], n_rows: usize, weights: &[f32], [n_out, n_in]: [usize; 2], y: &mut [f32]) {
    on(active_level(), x, n_rows, weights, [n_out, n_in], y);
}

fn on(level: SimdLevel, x: &[f32], n_rows: usize, weights: &[f32], [n_out, n_in]: [usize; 2], y: &mut [f32]) {
    assert_shapes(x.len(), n_rows, [n_out, n_in], None, y.len());
    assert_eq!(weights.len(), n_out * n_in, "{} weights for [{n_out}, {n_in}]", weights.len());
    if !matches!(level.isa(), Isa::Amx | Isa::Avx512Vnni) {
        let (x, weights) = (MatrixView::new(x, n_rows, n_in), MatrixView::new(weights, n_out, n_in));
        return simd::multiply(x, weights.transposed(), false, y);
    }
    let n_threads = threads_for(n_rows * n_in * n_out, PAYS);
    for_float_rows(x, n_in, OutputBlock::new(y, n_rows, n_out), n_threads, &|rows, index, out| {
        let first = index * PANEL * n_in;
        let of_panel = &weights[first..first + out.n_cols() * n_in];
        simd::multiply_weight_rows(level, rows, of_panel, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::tests::floats;

    #[test]
    fn every_path_is_near_the_exact_product_at_awkward_shapes() {
        for m in [0, 1, 2, 13, 40] {
            for k in [0, 1, 15, 16, 33, 130] {
                for n in [0, 1, 16, 31, 32, 33, 70] {
                    let (x, weights) = (floats(m * k, 3), floats(n * k, 5));
                    for level in SimdLevel::available() {
                        let mut y = vec![f32::NAN; m * n];
                        on(level, &x, m, &weights, [n, k], &mut y);
                        for (i, &value) in y.iter().enumerate() {
                            let (row, o) = (&x[i / n * k..][..k], &weights[i % n * k..][..k]);
                            let exact: f64 = row.iter().zip(o).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                            assert!((exact - f64::from(value)).abs() < 1e-4, "{level} M {m} K {k} N {n}");
                        }
                    }
                }
            }
        }
    }
}
