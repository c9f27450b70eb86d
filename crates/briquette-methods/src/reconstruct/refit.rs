//! Least squares: the weights of the remaining inputs of a layer that preserve its outputs best.

use crate::reconstruct::cholesky::{cholesky, solve};
use crate::reconstruct::product::{StridedMatrix, add_product};
use rayon::prelude::*;

/// A layer, and the statistics of its inputs.
#[derive(Debug, Clone, Copy)]
pub struct Consumer<'a> {
    /// The Gram matrix `Σ x xᵀ` of its inputs, `[n, n]`.
    pub gram: &'a [f64],
    /// The weights, `[out, n]`.
    pub weights: &'a [f32],
    /// The number of inputs.
    pub n: usize,
    /// Added to the diagonal of the Gram matrix, relative to its mean: it pulls weights to their old values.
    pub damping: f64,
}

impl Consumer<'_> {
    /// Returns the number of outputs.
    pub(crate) fn n_out(&self) -> usize {
        self.weights.len() / self.n.max(1)
    }

    /// Returns the value that is added to the diagonal; none if no input was observed or a sum is not finite.
    pub(crate) fn ridge(&self) -> Option<f64> {
        let mean = (0..self.n).map(|i| self.gram[i * self.n + i]).sum::<f64>() / self.n.max(1) as f64;
        (mean > 0.0 && mean.is_finite()).then_some(self.damping * mean)
    }

    /// Returns `A = G + ridge·I` in these rows and columns.
    pub(crate) fn damped(&self, rows: &[usize], columns: &[usize], ridge: f64) -> Vec<f64> {
        let mut found = vec![0.0; rows.len() * columns.len()];
        found.par_chunks_mut(columns.len().max(1)).zip(rows).for_each(|(found, &row)| {
            let from = &self.gram[row * self.n..(row + 1) * self.n];
            for (value, &column) in found.iter_mut().zip(columns) {
                *value = from[column] + if row == column { ridge } else { 0.0 };
            }
        });
        found
    }

    /// Returns `A·Wᵀ` in these rows, `[rows, out]`.
    pub(crate) fn targets(&self, rows: &[usize], ridge: f64) -> Vec<f64> {
        const N_ROWS: usize = 64;
        let (n, n_out) = (self.n, self.n_out());
        let weights: Vec<f64> = self.weights.iter().copied().map(f64::from).collect();
        let weights = StridedMatrix::new(&weights, n, n_out, n).transposed();
        let all: Vec<usize> = (0..n).collect();
        let mut found = vec![0.0; rows.len() * n_out];
        found.par_chunks_mut((N_ROWS * n_out).max(1)).zip(rows.par_chunks(N_ROWS)).for_each(|(found, rows)| {
            let matrix = self.damped(rows, &all, ridge);
            add_product(found, n_out, 1.0, StridedMatrix::new(&matrix, n, rows.len(), n), weights);
        });
        found
    }
}

/// Returns the weights of the kept inputs, `[out, kept]`, that preserve the outputs of a layer.
///
/// They minimize `tr((Ŵ - W) A (Ŵ - W)ᵀ)` with `A = Σ x xᵀ + damping·mean(diag)·I` and zeros for other inputs:
/// `Ŵ_Sᵀ = (A_SS)⁻¹ (A Wᵀ)_S`, in f64. Returns none if no input was observed, or if `A_SS` has no factor in f64.
/// Source: Meng et al., "OSSCAR", 2024, section 3.
///
/// # Errors
/// The first error of `check_stop`.
///
/// # Panics
/// If the Gram matrix is not `[n, n]`, or `n` does not divide the weights.
pub fn refit<E>(
    layer: &Consumer,
    kept: &[usize],
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Option<Vec<f32>>, E> {
    assert_eq!(layer.gram.len(), layer.n * layer.n, "the Gram matrix is square");
    assert_eq!(layer.weights.len(), layer.n * layer.n_out(), "whole rows");
    let (Some(ridge), false) = (layer.ridge(), kept.is_empty()) else { return Ok(None) };
    let n = kept.len();
    let mut lower = layer.damped(kept, kept, ridge);
    if !cholesky(&mut lower, n, check_stop)? {
        return Ok(None);
    }
    let solved = solve(&lower, n, &layer.targets(kept, ridge), layer.n_out());
    let weights: Vec<f32> = solved.into_iter().map(|value| value as f32).collect();
    Ok(weights.iter().all(|value| value.is_finite()).then_some(weights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::random::uniform;
    use std::convert::Infallible;

    fn check_stop() -> Result<(), Infallible> {
        Ok(())
    }

    /// Returns the Gram matrix of vectors `[count, n]`.
    fn gram(vectors: &[f64], n: usize) -> Vec<f64> {
        let mut gram = vec![0.0; n * n];
        for x in vectors.chunks_exact(n) {
            (0..n * n).for_each(|at| gram[at] += x[at / n] * x[at % n]);
        }
        gram
    }

    fn numbers(seed: u64, n: usize) -> Vec<f64> {
        (0..n).map(|i| f64::from(uniform(0, seed * 1000 + i as u64)) - 0.5).collect()
    }

    #[test]
    fn an_input_that_is_the_sum_of_others_is_replaced_without_error() {
        // x2 = x0 + 2 x1, so that its weight moves to the others.
        let vectors: Vec<f64> = numbers(1, 40).chunks_exact(2).flat_map(|x| [x[0], x[1], x[0] + 2.0 * x[1]]).collect();
        let layer =
            Consumer { gram: &gram(&vectors, 3), weights: &[1.0, 1.0, 1.0, 0.0, 0.0, 3.0], n: 3, damping: 1e-9 };
        let Ok(found) = refit(&layer, &[0, 1], &check_stop);
        let expected = [2.0, 3.0, 3.0, 6.0];
        assert!(found.unwrap().iter().zip(expected).all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-4));
    }

    #[test]
    fn the_normal_equations_hold() {
        for (n, n_out, kept) in [(5, 3, vec![0, 2, 3]), (70, 2, (0..70).step_by(2).collect()), (3, 130, vec![1])] {
            let gram = gram(&numbers(2, 200 * n), n);
            let weights: Vec<f32> = numbers(3, n * n_out).into_iter().map(|w| w as f32).collect();
            let layer = Consumer { gram: &gram, weights: &weights, n, damping: 0.01 };
            let Ok(found) = refit(&layer, &kept, &check_stop);
            let found = found.unwrap();
            let ridge = 0.01 * (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n as f64;
            for out in 0..n_out {
                let change = |column: usize| {
                    let new = kept.iter().position(|&own| own == column).map_or(0.0, |at| found[out * kept.len() + at]);
                    f64::from(new) - f64::from(weights[out * n + column])
                };
                for &row in &kept {
                    let slope: f64 = (0..n).map(|column| gram[row * n + column] * change(column)).sum();
                    assert!((slope + ridge * change(row)).abs() < 1e-4, "{n}: {out}, {row}: {slope}");
                }
            }
        }
    }

    #[test]
    fn all_inputs_keep_their_weights_and_unseen_inputs_give_none() {
        let vectors = numbers(4, 60);
        let weights = [0.5, -1.0, 2.0];
        let layer = Consumer { gram: &gram(&vectors, 3), weights: &weights, n: 3, damping: 0.01 };
        let Ok(found) = refit(&layer, &[0, 1, 2], &check_stop);
        assert!(found.unwrap().iter().zip(weights).all(|(a, b)| (a - b).abs() < 1e-5));
        for gram in [[0.0; 9], [f64::NAN; 9]] {
            let Ok(found) = refit(&Consumer { gram: &gram, ..layer }, &[0], &check_stop);
            assert_eq!(found, None);
        }
        assert_eq!(refit(&layer, &[0], &|| Err("stop")), Err("stop"));
    }
}
