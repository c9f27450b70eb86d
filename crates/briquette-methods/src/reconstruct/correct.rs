//! Corrects weights for the errors of the layers before them.

use crate::reconstruct::cholesky::{COLUMNS, cholesky, solve_columns};
use crate::reconstruct::product::{StridedMatrix, add_product};
use rayon::prelude::*;

/// The damping added to the diagonal, relative to its mean. With 0.05, the correction fits the calibration data only.
const DAMPING: f64 = 0.5;

/// Sums over the inputs `x` of a layer in the original model, and `x̂` in the compressed one.
#[derive(Debug, Clone, Copy)]
pub struct CrossInputs<'a> {
    /// `Σ x̂ x̂ᵀ`, `[n, n]`.
    pub gram: &'a [f64],
    /// `Σ x̂ xᵀ`, `[n, n]`.
    pub cross: &'a [f64],
    /// `Σ x̂ (r - r̂)ᵀ`, `[n, outputs]`, for a value `r` that is added to the layer's outputs.
    pub added: Option<&'a [f64]>,
}

/// Moves weights `[outputs, n]` so that the layer's outputs on compressed inputs are near the original ones.
///
/// With `E = (X - X̂)Wᵀ + (R - R̂)`, the weights become `W + [(X̂ᵀX̂ + 0.5·mean(diag)·I)⁻¹ X̂ᵀE]ᵀ`. Returns whether they
/// changed: they stay if the matrix has no Cholesky factor or a new weight is not finite.
///
/// Takes 16 bytes for each pair of inputs. The result does not depend on the number of threads. `check_stop` is called
/// for every block of columns.
///
/// Source: Y. Arai, Y. Ichikawa, "Quantization error propagation", 2025; the residual stream as in "WaterSIC", 2026.
///
/// # Errors
/// The first error of `check_stop`; the weights are then unchanged.
///
/// # Panics
/// If the lengths disagree.
pub fn correct<E>(
    weights: &mut [f32],
    n: usize,
    inputs: CrossInputs,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<bool, E> {
    let CrossInputs { gram, cross, added } = inputs;
    assert_eq!((gram.len(), cross.len()), (n * n, n * n), "both matrices are n × n");
    assert!(weights.len().is_multiple_of(n.max(1)), "whole rows of weights");
    let n_rows = weights.len() / n.max(1);
    assert!(added.is_none_or(|added| added.len() == n * n_rows), "the sums of added values are n × outputs");
    let mut lower = gram.to_vec();
    let damping = DAMPING * (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n.max(1) as f64;
    (0..n).for_each(|i| lower[i * n + i] += damping);
    if !cholesky(&mut lower, n, check_stop)? {
        return Ok(false);
    }
    let drift: Vec<f64> = cross.iter().zip(gram).map(|(cross, gram)| cross - gram).collect();
    let moved: Vec<Vec<f32>> = weights
        .par_chunks(COLUMNS * n.max(1))
        .enumerate()
        .map(|(chunk, rows)| moved(rows, (&lower, &drift, n), added.map(|added| (added, n_rows, chunk * COLUMNS))))
        .collect();
    let moved = moved.concat();
    let is_sound = moved.iter().all(|weight| weight.is_finite());
    if is_sound {
        weights.copy_from_slice(&moved);
    }
    Ok(is_sound)
}

/// Returns some rows of corrected weights. `added` are the sums, their number of outputs and the first of these rows.
fn moved(rows: &[f32], (lower, drift, n): (&[f64], &[f64], usize), added: Option<(&[f64], usize, usize)>) -> Vec<f32> {
    let n_rows = rows.len() / n;
    let wide: Vec<f64> = rows.iter().copied().map(f64::from).collect();
    let mut columns = vec![[0.0; COLUMNS]; n];
    if let Some((added, stride, first)) = added {
        for (column, sums) in columns.iter_mut().zip(added.chunks(stride)) {
            column[..n_rows].copy_from_slice(&sums[first..first + n_rows]);
        }
    }
    let by_inputs = StridedMatrix::new(&wide, n, n_rows, n).transposed();
    add_product(columns.as_flattened_mut(), COLUMNS, 1.0, StridedMatrix::new(drift, n, n, n), by_inputs);
    solve_columns(lower, n, &mut columns);
    let moved = |at: usize| (wide[at] + columns[at % n][at / n]) as f32;
    (0..rows.len()).map(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Returns `Σ a bᵀ` of two lists of vectors.
    fn sums(a: &[Vec<f64>], b: &[Vec<f64>]) -> Vec<f64> {
        let of = |i: usize, j: usize| a.iter().zip(b).map(|(a, b)| a[i] * b[j]).sum();
        (0..a[0].len()).flat_map(|i| (0..b[0].len()).map(move |j| of(i, j))).collect()
    }

    #[test]
    fn corrected_outputs_are_nearer_to_the_original_ones() {
        let (n, n_rows) = (70, 130);
        let number = |at: usize| ((at * 7919 + 13) % 1009) as f64 / 504.0 - 1.0;
        let vectors = |n: usize, seed: usize| -> Vec<Vec<f64>> {
            (0..300)
                .map(|sample| (0..n).map(|i| number(seed + 31 * sample + 17 * i * (sample + 1))).collect())
                .collect()
        };
        let (original, noise) = (vectors(n, 0), vectors(n, 5));
        let compressed: Vec<Vec<f64>> = original
            .iter()
            .zip(&noise)
            .map(|(x, noise)| x.iter().zip(noise).map(|(x, noise)| 0.9 * x + 0.1 * noise).collect())
            .collect();
        let residual: Vec<Vec<f64>> =
            vectors(n_rows, 9).into_iter().map(|r| r.iter().map(|r| 0.1 * r).collect()).collect();
        let weights: Vec<f32> = (0..n_rows * n).map(|at| number(3 * at) as f32).collect();
        let error = |corrected: &[f32]| -> f64 {
            let of = |sample: usize, row: usize| {
                let product = |weights: &[f32], x: &[f64]| -> f64 {
                    weights[row * n..(row + 1) * n].iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
                };
                let expected = product(&weights, &original[sample]) + residual[sample][row];
                (expected - product(corrected, &compressed[sample])).powi(2)
            };
            (0..300).flat_map(|sample| (0..n_rows).map(move |row| (sample, row))).map(|(s, r)| of(s, r)).sum()
        };
        let (gram, cross) = (sums(&compressed, &compressed), sums(&compressed, &original));
        let added = sums(&compressed, &residual);
        let check_stop = || Ok::<(), Infallible>(());
        let mut corrected = weights.clone();
        let inputs = CrossInputs { gram: &gram, cross: &cross, added: Some(&added) };
        assert_eq!(correct(&mut corrected, n, inputs, &check_stop), Ok(true));
        assert!(error(&corrected) < 0.8 * error(&weights), "{} of {}", error(&corrected), error(&weights));
        // Without errors before the layer, nothing changes.
        let mut same = weights.clone();
        let inputs = CrossInputs { gram: &gram, cross: &gram, added: None };
        assert_eq!(correct(&mut same, n, inputs, &check_stop), Ok(true));
        assert_eq!(same, weights);
    }

    #[test]
    fn weights_without_inputs_stay() {
        let check_stop = || Ok::<(), Infallible>(());
        let mut weights = [1.0, 2.0];
        let none = CrossInputs { gram: &[0.0; 4], cross: &[0.0; 4], added: None };
        assert_eq!(correct(&mut weights, 2, none, &check_stop), Ok(false));
        let broken = CrossInputs { gram: &[1.0, 0.0, 0.0, 1.0], cross: &[f64::NAN; 4], added: None };
        assert_eq!(correct(&mut weights, 2, broken, &check_stop), Ok(false));
        assert_eq!(weights, [1.0, 2.0]);
        let empty = CrossInputs { gram: &[], cross: &[], added: None };
        assert_eq!(correct(&mut [], 0, empty, &check_stop), Ok(true));
    }
}
