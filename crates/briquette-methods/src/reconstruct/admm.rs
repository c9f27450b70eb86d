//! Pruning by the alternating direction method of multipliers (ADMM): finds the mask and the remaining weights
//! together.

use crate::prune::budget::cubic;
use crate::prune::{Ratio, SparsityPattern, select};
use crate::reconstruct::cholesky::{cholesky, inverse};
use crate::reconstruct::product::{StridedMatrix, add_product};
use crate::reconstruct::{FactorOutcome, Fallback};
use briquette_core::Mask;
use rayon::prelude::*;

/// The damping added to the diagonal, relative to its mean.
const DAMPING: f64 = 0.1;

/// The penalty weight of the constraint.
const RHO: f32 = 1.0;

/// The number of iterations.
const N_STEPS: usize = 20;

/// The number of first iterations in which the mask is updated.
const N_CHOICES: usize = 15;

/// The number of rows per thread: with 64, products by `gemm` took three times as long.
const ROWS: usize = 128;

/// Prunes weights `[rows, n_cols]` and solves for the remaining ones, with the least `‖(ŵ − w)·x‖²`.
///
/// Columns are scaled to `‖x_i‖ = 1`; `A = XXᵀ + 0.1·mean(diag)·I` and `ρ = 1`. Each of 20 iterations prunes
/// the smallest of `V = W + U`, which gives `Z`, and then sets `U ← V − Z`, `W ← (W₀·A + ρ(Z − U))·(A + ρI)⁻¹`.
/// The first 15 iterations update the mask: a `Count` is pruned in full from the start; counts per row and N:M
/// counts grow cubically, as in the reference. Ties drop the lower index. The result is the last `Z`, with the
/// scaling undone; pruned weights are exactly 0.0.
///
/// Returns the mask and the outcome. Weights are pruned by magnitude and the others stay unchanged in three
/// cases: no input was observed, the matrix has no Cholesky factor, or a solved weight is not finite. Weights
/// of a dead input are pruned first.
///
/// Memory: 12 bytes per pair of inputs (besides the Gram matrix), and 20 per weight. `check_stop` is called in
/// each iteration, and for every 128 columns of the inverse.
///
/// Source: Boža, "Fast and Effective Weight Update for Pruned Large Language Models", 2024, algorithm 1, as in
/// `AdmmPruner.fasterprune` of its repository.
///
/// # Errors
/// The first error of `check_stop`; the weights are then invalid.
///
/// # Panics
/// If the lengths disagree, the rule drops more weights than there are, or `m` does not divide the row.
pub fn admm<E>(
    weights: &mut [f32],
    n_cols: usize,
    sparsity: SparsityPattern,
    gram: &[f64],
    count: u64,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<(Mask, FactorOutcome), E> {
    assert_eq!(gram.len(), n_cols * n_cols, "the Gram matrix is n_cols × n_cols");
    assert!(weights.len().is_multiple_of(n_cols.max(1)), "whole rows of weights");
    let n_dead = (0..n_cols).filter(|i| gram[i * n_cols + i] == 0.0).count();
    let mut outcome = FactorOutcome { damping: DAMPING, n_dead: if count == 0 { 0 } else { n_dead }, fallback: None };
    let norms: Vec<f64> = (0..n_cols).map(|i| gram[i * n_cols + i].sqrt() + 1e-8).collect();
    let found =
        if count == 0 { Err(Fallback::NothingSeen) } else { solve(weights, sparsity, gram, &norms, check_stop)? };
    let found = found.and_then(|(values, keep)| {
        let solved = unscaled(&values, &keep, &norms);
        if solved.iter().all(|weight| weight.is_finite()) { Ok((solved, keep)) } else { Err(Fallback::NotFinite) }
    });
    let (solved, keep) = found.unwrap_or_else(|fallback| {
        outcome.fallback = Some(fallback);
        let keep = choose(weights, n_cols, sparsity, N_CHOICES);
        (unscaled(weights, &keep, &vec![1.0; n_cols]), keep)
    });
    weights.copy_from_slice(&solved);
    Ok((keep, outcome))
}

/// Returns the kept weights with the scaling of columns undone; 0 where dropped.
fn unscaled(values: &[f32], keep: &Mask, norms: &[f64]) -> Vec<f32> {
    let rows = values.chunks(norms.len().max(1)).enumerate();
    let row = |(row, values): (usize, &[f32])| -> Vec<f32> {
        let kept = |(col, &value): (usize, &f32)| match keep.keeps(row, col) {
            true => (f64::from(value) / norms[col]) as f32,
            false => 0.0,
        };
        values.iter().enumerate().map(kept).collect()
    };
    rows.flat_map(row).collect()
}

/// Returns `V` after the last iteration, for scaled columns, and its mask.
fn solve<E>(
    weights: &[f32],
    sparsity: SparsityPattern,
    gram: &[f64],
    norms: &[f64],
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Result<(Vec<f32>, Mask), Fallback>, E> {
    let n = norms.len();
    let mut values: Vec<f32> =
        weights.iter().zip(norms.iter().cycle()).map(|(&weight, norm)| (f64::from(weight) * norm) as f32).collect();
    let mut matrix = scaled_and_damped(gram, norms);
    let as_f32: Vec<f32> = matrix.par_iter().map(|&value| value as f32).collect();
    let mut target = vec![0.0; values.len()];
    multiply(&values, &as_f32, n, &mut target);
    drop(as_f32);
    (0..n).for_each(|i| matrix[i * n + i] += f64::from(RHO));
    if !cholesky(&mut matrix, n, check_stop)? {
        return Ok(Err(Fallback::NotPositive));
    }
    let inverse = inverse(&matrix, n);
    drop(matrix);
    let (mut dual, mut wanted) = (vec![0.0; values.len()], vec![0.0; values.len()]);
    let mut keep = Mask::from_bits(0, n, Vec::new());
    for step in 1..=N_STEPS {
        check_stop()?;
        values.par_iter_mut().zip(&dual).for_each(|(value, dual)| *value += dual);
        if step <= N_CHOICES {
            keep = choose(&values, n, sparsity, step);
        }
        split(&values, &target, &keep, &mut dual, &mut wanted);
        multiply(&wanted, &inverse, n, &mut values);
    }
    values.par_iter_mut().zip(&dual).for_each(|(value, dual)| *value += dual);
    Ok(Ok((values, keep)))
}

/// Returns `G_ij / (‖x_i‖·‖x_j‖)`, with the damping on its diagonal.
fn scaled_and_damped(gram: &[f64], norms: &[f64]) -> Vec<f64> {
    let n = norms.len();
    let mut matrix = gram.to_vec();
    matrix.par_chunks_mut(n.max(1)).zip(norms).for_each(|(row, norm)| {
        row.iter_mut().zip(norms).for_each(|(value, other)| *value /= norm * other);
    });
    let added = DAMPING * (0..n).map(|i| matrix[i * n + i]).sum::<f64>() / n.max(1) as f64;
    (0..n).for_each(|i| matrix[i * n + i] += added);
    matrix
}

/// Computes `U ← V − Z` and `W₀·A + ρ(Z − U)` from `V`, where `Z` has the kept weights.
fn split(values: &[f32], target: &[f32], keep: &Mask, dual: &mut [f32], wanted: &mut [f32]) {
    let n = keep.dim().1.max(1);
    let made = dual.par_chunks_mut(n).zip(wanted.par_chunks_mut(n));
    made.zip(values.par_chunks(n).zip(target.par_chunks(n))).enumerate().for_each(
        |(row, ((dual, wanted), (values, target)))| {
            for (col, &value) in values.iter().enumerate() {
                let kept = if keep.keeps(row, col) { value } else { 0.0 };
                dual[col] = value - kept;
                wanted[col] = target[col] + RHO * (kept - dual[col]);
            }
        },
    );
}

/// Computes `product = rows · matrix` for a matrix `[n, n]`.
fn multiply(rows: &[f32], matrix: &[f32], n: usize, product: &mut [f32]) {
    let size = ROWS * n.max(1);
    product.par_chunks_mut(size).zip(rows.par_chunks(size)).for_each(|(product, rows)| {
        product.fill(0.0);
        add_product(
            product,
            n,
            1.0,
            StridedMatrix::new(rows, n, rows.len() / n, n),
            StridedMatrix::new(matrix, n, n, n),
        );
    });
}

/// Returns the mask of one of the iterations that update it.
fn choose(values: &[f32], n_cols: usize, sparsity: SparsityPattern, step: usize) -> Mask {
    let n_rows = values.len() / n_cols.max(1);
    match sparsity {
        SparsityPattern::Unstructured(n_drop) => select::smallest(values, n_rows, n_cols, n_drop),
        SparsityPattern::PerRow(n_drop) => {
            assert!(n_drop <= n_cols, "{n_drop} of every {n_cols} weights");
            let mut keep = vec![0; n_rows * Mask::row_bytes(n_cols)];
            let rows = keep.par_chunks_mut(Mask::row_bytes(n_cols).max(1)).zip(values.par_chunks(n_cols.max(1)));
            let n_drop = count_at(step, n_drop, n_cols);
            rows.for_each(|(keep, values)| select::smallest_of_each(values, n_cols, n_drop, &mut Vec::new(), keep));
            Mask::from_bits(n_rows, n_cols, keep)
        }
        SparsityPattern::NOfM { n, m } => {
            let of_runs = select::n_of_m(values, n_rows, n_cols, n, m);
            let n_drop = count_at(step, values.len() / m * (m - n), values.len());
            let score = |at: usize| if of_runs.keeps(at / n_cols, at % n_cols) { f32::INFINITY } else { values[at] };
            let scores: Vec<f32> = (0..values.len()).into_par_iter().map(score).collect();
            select::smallest(&scores, n_rows, n_cols, n_drop)
        }
    }
}

/// Returns how many of `n` weights are pruned in an iteration: `s − s·(1 − step/15)³` of them, rounded down.
/// The last iterations prune all `n_drop`.
fn count_at(step: usize, n_drop: usize, n: usize) -> usize {
    match (Ratio::new(0.0), Ratio::new(n_drop as f64 / n.max(1) as f64)) {
        (Some(none), Some(end)) if step < N_CHOICES => (cubic(step, 0..N_CHOICES, none, end).get() * n as f64) as usize,
        _ => n_drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gram_matrix_beyond_f32_falls_back_to_magnitude() {
        let check_stop = || Ok::<(), std::convert::Infallible>(());
        for size in [5e77, 1e100, 1e300] {
            let gram: Vec<f64> = [8.0, 4.0, 4.0, 10.0].map(|value| value * size).into();
            let mut weights = [0.5, -0.25, 0.125, 1.0];
            let Ok((keep, outcome)) = admm(&mut weights, 2, SparsityPattern::PerRow(1), &gram, 4, &check_stop);
            assert_eq!(outcome.fallback, Some(Fallback::NotFinite), "{size}");
            assert_eq!(weights, [0.5, 0.0, 0.0, 1.0], "{size}");
            assert!(keep.keeps(0, 0) && !keep.keeps(0, 1));
        }
    }

    #[test]
    fn the_number_of_dropped_weights_grows_to_all() {
        let counts: Vec<usize> = (1..=N_STEPS).map(|step| count_at(step, 50, 100)).collect();
        assert_eq!(counts[..4], [9, 17, 24, 30]);
        assert!(counts.is_sorted() && counts[13] < 50 && counts[14..] == [50; 6]);
        assert_eq!(count_at(3, 0, 0), 0);
    }
}
