//! The scale of each row after its codes are known.

use crate::reconstruct::product::{StridedMatrix, add_product};
use rayon::prelude::*;

/// The number of rows per thread.
const ROWS: usize = 128;

/// Factors are at most this, and at least its inverse: inputs that the calibration hardly saw do not decide a row.
const MOST: f64 = 1.25;

/// Returns the factor of each row of rounded weights `ŵ` with the least error of outputs: `ŵGw / ŵGŵ`.
///
/// `w` are the weights `[rows, n]`, `G` is the Gram matrix of the inputs plus `damping` times its mean diagonal on the diagonal.
/// Codes stay, and the scales of a row are multiplied by its factor. It is 1 if the row or its inputs are 0.
///
/// Source: "WaterSIC", 2026 (the refit of row scales).
///
/// # Panics
/// If the lengths disagree.
pub fn row_factors([weights, rounded]: [&[f32]; 2], n: usize, gram: &[f64], damping: f64) -> Vec<f64> {
    assert_eq!((weights.len(), gram.len()), (rounded.len(), n * n), "weights of both kinds, and an n × n matrix");
    let added = damping * (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n.max(1) as f64;
    let of_strip = |(weights, rounded): (&[f32], &[f32])| {
        let wide: Vec<f64> = rounded.iter().copied().map(f64::from).collect();
        let mut product: Vec<f64> = wide.iter().map(|value| added * value).collect();
        let n_rows = wide.len() / n;
        let (own, gram) = (StridedMatrix::new(&wide, n, n_rows, n), StridedMatrix::new(gram, n, n, n));
        add_product(&mut product, n, 1.0, own, gram);
        let factor = |row: usize| {
            let cols = row * n..(row + 1) * n;
            let dot = |values: &[f32]| -> f64 {
                values.iter().zip(&product[cols.clone()]).map(|(a, b)| f64::from(*a) * b).sum()
            };
            let factor = dot(&weights[cols.clone()]) / dot(&rounded[cols.clone()]);
            if factor.is_finite() { factor.clamp(1.0 / MOST, MOST) } else { 1.0 }
        };
        (0..n_rows).map(factor).collect::<Vec<f64>>()
    };
    let strips = weights.par_chunks(ROWS * n.max(1)).zip(rounded.par_chunks(ROWS * n.max(1)));
    strips.map(of_strip).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_factor_has_less_error() {
        let gram = [4.0, 1.0, 1.0, 2.0];
        let (weights, rounded) = ([1.0_f32, 0.3, -0.8, 0.5], [0.9_f32, 0.0, -0.9, 0.9]);
        let factors = row_factors([&weights, &rounded], 2, &gram, 0.0);
        let error = |row: usize, factor: f64| {
            let of = |col: usize| factor * f64::from(rounded[2 * row + col]) - f64::from(weights[2 * row + col]);
            (0..4).map(|at| of(at / 2) * gram[at] * of(at % 2)).sum::<f64>()
        };
        for (row, &factor) in factors.iter().enumerate() {
            assert!((factor - 1.0).abs() > 0.01 && (factor - 1.0).abs() < 0.25, "row {row}: {factor}");
            assert!(error(row, factor) < error(row, factor + 1e-3) && error(row, factor) < error(row, factor - 1e-3));
        }
    }

    #[test]
    fn rows_and_inputs_of_zeros_keep_their_scale_and_factors_have_bounds() {
        let (gram, none) = ([1.0, 0.0, 0.0, 1.0], [0.0; 4]);
        assert_eq!(row_factors([&[1.0, 2.0], &[0.0, 0.0]], 2, &gram, 0.01), [1.0]);
        assert_eq!(row_factors([&[1.0, 2.0], &[1.0, 1.0]], 2, &none, 0.01), [1.0]);
        assert_eq!(row_factors([&[9.0, 0.0, 0.1, 0.0], &[1.0, 0.0, 1.0, 0.0]], 2, &gram, 0.0), [1.25, 0.8]);
        assert!(row_factors([&[], &[]], 0, &[], 0.01).is_empty());
    }

    #[test]
    fn the_result_does_not_depend_on_threads() {
        let number = |at: usize| ((at * 7919 + 13) % 1009) as f32 / 504.0 - 1.0;
        let n = 33;
        let gram: Vec<f64> = (0..n * n).map(|at| if at / n == at % n { 3.0 } else { 1.0 }).collect();
        let weights: Vec<f32> = (0..300 * n).map(number).collect();
        let rounded: Vec<f32> = weights.iter().map(|weight| (weight * 4.0).round() / 4.0).collect();
        let of = |n_threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| row_factors([&weights, &rounded], n, &gram, 0.01))
        };
        assert_eq!(of(1), of(3));
    }
}
