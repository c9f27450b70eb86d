//! The error of a layer's outputs after its weights change.

use crate::reconstruct::product::{StridedMatrix, add_product};
use briquette_core::InputStats;
use rayon::prelude::*;

/// The number of rows per thread.
const ROWS: usize = 128;

/// The number of columns that are multiplied together.
const COLUMNS: usize = 256;

/// Returns the mean over the inputs of `‖(ŵ − w)·x‖²`, summed over the outputs.
///
/// This is `tr(E·G·Eᵀ) / N` with `E = ŵ − w` and the Gram matrix `G` of `N` vectors. Without a Gram matrix it
/// is `Σ E[x_i²]·e_i²`, which assumes uncorrelated inputs of mean 0. It is 0 if no input was observed.
///
/// Both tensors are `[rows, inputs]`. The result does not depend on the number of threads.
///
/// # Panics
/// If the lengths disagree.
pub fn output_error(original: &[f32], found: &[f32], stats: &InputStats) -> f64 {
    let n = stats.n_inputs();
    assert_eq!(original.len(), found.len(), "both tensors have the same number of weights");
    assert!(original.len().is_multiple_of(n.max(1)), "whole rows of {n} weights");
    if n == 0 {
        return 0.0;
    }
    let strips = original.par_chunks(ROWS * n).zip(found.par_chunks(ROWS * n));
    let of_strips = strips.map(|(original, found)| {
        let errors: Vec<f64> = found.iter().zip(original).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect();
        match &stats.gram {
            Some(gram) => quadratic(&errors, gram, n),
            None => errors.iter().zip(stats.sum_squares.iter().cycle()).map(|(error, sum)| error * error * sum).sum(),
        }
    });
    of_strips.collect::<Vec<f64>>().iter().sum::<f64>() / stats.count.max(1) as f64
}

/// Returns `tr(E·G·Eᵀ)` of a symmetric `G`, from the blocks of its upper triangle.
fn quadratic(errors: &[f64], gram: &[f64], n: usize) -> f64 {
    let n_rows = errors.len() / n;
    let mut total = 0.0;
    for first in (0..n).step_by(COLUMNS) {
        let width = COLUMNS.min(n - first);
        let mut product = vec![0.0; n_rows * width];
        let block = |rows: std::ops::Range<usize>| {
            (
                StridedMatrix::new(&errors[rows.start..], n, n_rows, rows.len()),
                StridedMatrix::new(&gram[rows.start * n + first..], n, rows.len(), width),
            )
        };
        let ((before, beside), (here, diagonal)) = (block(0..first), block(first..first + width));
        add_product(&mut product, width, 2.0, before, beside);
        add_product(&mut product, width, 1.0, here, diagonal);
        for (product, errors) in product.chunks_exact(width).zip(errors.chunks_exact(n)) {
            total += product.iter().zip(&errors[first..]).map(|(a, b)| a * b).sum::<f64>();
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_mean_square_change_of_outputs() {
        for (n_rows, n) in [(1, 1), (3, 5), (70, 300), (2, 600)] {
            let number = |i: usize| ((i * 7919) % 101) as f32 / 50.0 - 1.0;
            let original: Vec<f32> = (0..n_rows * n).map(number).collect();
            let found: Vec<f32> = (0..n_rows * n).map(|i| number(3 * i + 1)).collect();
            let mut stats = InputStats::empty(n, true);
            let mut expected = 0.0;
            for token in 0..4 {
                let x: Vec<f64> = (0..n).map(|i| f64::from(number(11 * i + 29 * token))).collect();
                let gram = std::sync::Arc::make_mut(stats.gram.as_mut().unwrap());
                (0..n * n).for_each(|at| gram[at] += x[at / n] * x[at % n]);
                (0..n).for_each(|i| stats.sum_squares[i] += x[i] * x[i]);
                stats.count += 1;
                for (a, b) in original.chunks(n).zip(&mut found.chunks(n)) {
                    let moved: f64 = (0..n).map(|i| (f64::from(b[i]) - f64::from(a[i])) * x[i]).sum();
                    expected += moved * moved / 4.0;
                }
            }
            let error = output_error(&original, &found, &stats);
            assert!((error / expected - 1.0).abs() < 1e-10, "[{n_rows}, {n}]: {error}, expected {expected}");
            stats.gram = None;
            let apart =
                |at: usize| (f64::from(found[at]) - f64::from(original[at])).powi(2) * stats.sum_squares[at % n] / 4.0;
            let expected: f64 = (0..n_rows * n).map(apart).sum();
            assert!((output_error(&original, &found, &stats) / expected - 1.0).abs() < 1e-10);
        }
        assert_eq!(output_error(&[1.0], &[2.0], &InputStats::empty(1, true)), 0.0);
        assert_eq!(output_error(&[], &[], &InputStats::empty(0, false)), 0.0);
    }
}
