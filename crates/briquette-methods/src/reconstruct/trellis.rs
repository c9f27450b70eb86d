//! GPTQ on a trellis: each column is rounded to the path of least error and bits.

use crate::reconstruct::InverseFactor;
use crate::reconstruct::strip::{BLOCK, Lanes, RowStrip, STRIP, blocks};
use crate::reconstruct::trellis_path::{BitCosts, TrellisPaths};
use briquette_core::encoded::CodeBlocks;
use briquette_core::entropy::trellis::can_have_trellis;
use briquette_core::{Mask, QuantParams};
use rayon::prelude::*;

/// The cost of a bit in squared steps, where all columns matter equally.
///
/// With an error of `D ~ 2^(−2·bits)`, a bit is worth `2·ln 2·D`, and `D` is about .265 squared steps on the trellis.
const BIT_COST: f64 = 0.368;
/// The distance of the columns that the bits of codes are estimated from, and how often.
const EVERY: usize = 8;
const ROUNDS: usize = 3;

/// Rounds finite weights `[rows, n_cols]` to codes on a [trellis](briquette_core::entropy::trellis), times the scale of
/// their row, and updates later columns to preserve the outputs.
///
/// As [`gptq`](crate::reconstruct::gptq), but all rows of a [block](CodeBlocks) of a column `j` are rounded together, to the
/// path of codes `n_i` with the least `Σ_i (w_i/Δ_i − n_i)² + λ_j·bits(n_i)`, where `λ_j = .368·mean_k(U_kk⁻²) / U_jj⁻²`. Rows are
/// independent given the columns before, so this is exact. `bits` follow from how often codes occur in every eighth
/// column, rounded without updates.
///
/// Returns false if no path keeps the weights zero that `keep` drops; the weights are then invalid.
///
/// Source: entropy-coded trellis-coded quantization, T. Fischer, M. Wang, 1992.
///
/// # Errors
/// The first error of `check_stop`; the weights are then invalid.
///
/// # Panics
/// If the lengths disagree, if rows of this length [cannot](can_have_trellis) have a trellis, or if a row has several scales.
pub fn gptq_on_trellis<E: Send>(
    weights: &mut [f32],
    n_cols: usize,
    quant: &QuantParams,
    keep: Option<&Mask>,
    factor: &InverseFactor,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<bool, E> {
    assert_eq!(factor.n_cols(), n_cols, "the factor has n_cols columns");
    assert!(can_have_trellis(n_cols) && weights.len().is_multiple_of(n_cols), "whole rows of a multiple of 32 weights");
    assert_eq!(quant.group_size(), n_cols, "one scale for each row");
    let n_rows = weights.len() / n_cols;
    assert!(keep.is_none_or(|keep| keep.dim() == (n_rows, n_cols)), "the mask has the shape of the weights");
    let costs = bit_costs(factor);
    let rows_per_block = CodeBlocks::new(n_rows, n_cols).rows(0).len().max(1);
    let each = weights.par_chunks_mut(rows_per_block * n_cols).enumerate().map(|(number, weights)| {
        let first = number * rows_per_block;
        let rows = first..first + weights.len() / n_cols;
        let scales = rows.clone().map(|row| quant.row(row)[0].scale).collect();
        let is_zero = |row: usize, col: usize| keep.is_some_and(|keep| !keep.keeps(first + row, col));
        TrellisRows { n_cols, scales, is_zero, costs: &costs }.round(weights, factor, check_stop)
    });
    each.try_reduce(|| true, |all, one| Ok(all && one))
}

/// Returns `λ` of each column in the factor's order.
fn bit_costs(factor: &InverseFactor) -> Vec<f32> {
    let losses: Vec<f64> = factor.pivots().iter().map(|&pivot| f64::from(pivot).powi(2)).collect();
    let mean = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    losses.iter().map(|loss| (BIT_COST * mean / loss) as f32).collect()
}

/// Rows whose columns begin at the first state.
struct TrellisRows<'a, Z> {
    n_cols: usize,
    /// The step of each row.
    scales: Vec<f32>,
    /// Whether the weight at a row and a column has to be 0.
    is_zero: Z,
    costs: &'a [f32],
}

impl<Z: Fn(usize, usize) -> bool> TrellisRows<'_, Z> {
    /// Rounds all columns. Returns false if a column has no path.
    fn round<E>(
        &self,
        weights: &mut [f32],
        factor: &InverseFactor,
        check_stop: &impl Fn() -> Result<(), E>,
    ) -> Result<bool, E> {
        let (n_rows, n_cols) = (self.scales.len(), self.n_cols);
        let mut paths = TrellisPaths::new(n_rows);
        let Some(bits) = self.estimated_bits(weights, factor, &mut paths) else { return Ok(false) };
        let mut strips: Vec<RowStrip> =
            weights.chunks_mut(STRIP * n_cols).map(|rows| RowStrip::new(rows, factor)).collect();
        let mut settled: Vec<Lanes> = vec![[0.0; STRIP]; strips.len()];
        for block in blocks(n_cols, BLOCK) {
            check_stop()?;
            strips.iter_mut().for_each(|strip| strip.begin(&block));
            for k in block.clone() {
                let wanted: Vec<Lanes> = strips.iter().map(|strip| strip.column(k)).collect();
                let all = &wanted.as_flattened()[..n_rows];
                if !self.path(&mut paths, factor.order()[k], k, all, &bits) {
                    return Ok(false);
                }
                self.values(&paths, all, settled.as_flattened_mut());
                for ((strip, wanted), settled) in strips.iter_mut().zip(&wanted).zip(&settled) {
                    strip.settle(&block, k, wanted, settled);
                }
            }
            strips.iter_mut().for_each(|strip| strip.end(&block));
        }
        Ok(true)
    }

    /// Finds the path of a column, the `k`-th in order. Returns whether there is one.
    fn path(&self, paths: &mut TrellisPaths, col: usize, k: usize, wanted: &[f32], bits: &BitCosts) -> bool {
        let in_steps = wanted.iter().zip(&self.scales).map(|(value, scale)| value / scale);
        paths.find(in_steps, |row| (self.is_zero)(row, col), bits, self.costs[k])
    }

    /// Writes the values of the codes of a path; NaN for a wanted value that is not finite.
    fn values(&self, paths: &TrellisPaths, wanted: &[f32], out: &mut [f32]) {
        let rows = paths.codes().iter().zip(&self.scales).zip(wanted);
        rows.zip(out).for_each(|(((&code, &scale), &wanted), out)| *out = f32::from(code) * scale + wanted * 0.0);
    }

    /// Estimates the bits of each code from some columns. `None` if one of them has no path.
    fn estimated_bits(&self, weights: &[f32], factor: &InverseFactor, paths: &mut TrellisPaths) -> Option<BitCosts> {
        let mut bits = BitCosts::rough();
        for _ in 0..ROUNDS {
            let mut counts = [0_u64; 256];
            for k in (0..self.n_cols).step_by(EVERY) {
                let col = factor.order()[k];
                let values: Vec<f32> = weights.chunks_exact(self.n_cols).map(|row| row[col]).collect();
                if !self.path(paths, col, k, &values, &bits) {
                    return None;
                }
                paths.codes().iter().for_each(|&code| counts[usize::from(code as u8)] += 1);
            }
            bits = BitCosts::of_counts(&counts);
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconstruct::{FactorSpec, gptq};
    use briquette_core::entropy::{trellis::follows, write_block, write_trellis_block};
    use briquette_core::random::uniform;
    use briquette_core::{Affine, Grid, Grouping};
    use std::convert::Infallible;

    const N_ROWS: usize = 512;
    const N_COLS: usize = 64;

    /// Returns numbers with about a normal distribution.
    fn normal(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|at| (0..12).map(|part| uniform(seed, 12 * at + part)).sum::<f32>() - 6.0).collect()
    }

    /// Returns a Gram matrix of inputs that are correlated, and some much larger than others.
    fn gram() -> Vec<f64> {
        let inputs = normal(4 * N_COLS * N_COLS, 5);
        let of_vector = |vector: &[f32]| -> Vec<f64> {
            (0..N_COLS)
                .map(|col| f64::from(vector[col] + 0.7 * vector[(col + 1) % N_COLS]) * (1.0 + (col % 5) as f64))
                .collect()
        };
        let vectors: Vec<Vec<f64>> = inputs.chunks(N_COLS).map(of_vector).collect();
        let product = |a: usize, b: usize| vectors.iter().map(|vector| vector[a] * vector[b]).sum();
        (0..N_COLS * N_COLS).map(|at| product(at / N_COLS, at % N_COLS)).collect()
    }

    fn error(original: &[f32], rounded: &[f32], gram: &[f64]) -> f64 {
        let changes: Vec<f64> = original.iter().zip(rounded).map(|(a, b)| f64::from(a - b)).collect();
        let of_row = |row: &[f64]| -> f64 {
            let quadratic = |(a, change): (usize, &f64)| {
                change * row.iter().zip(&gram[a * N_COLS..]).map(|(other, product)| other * product).sum::<f64>()
            };
            row.iter().enumerate().map(quadratic).sum()
        };
        changes.chunks(N_COLS).map(of_row).sum()
    }

    /// Rounds weights with a step. Returns the error, the bytes of the codes, and the codes.
    fn rounded(step: f32, is_trellis: bool, keep: Option<&Mask>) -> (f64, usize, Vec<i8>) {
        let (original, gram) = (normal(N_ROWS * N_COLS, 3), gram());
        let check_stop = || Ok::<(), Infallible>(());
        let Ok(factor) = InverseFactor::new(&gram, 4 * N_COLS as u64, &FactorSpec::default(), &check_stop);
        let quant = QuantParams::new(Grid::INT8, Grouping::Row, N_COLS, vec![Affine::symmetric(step); N_ROWS]);
        let (mut weights, mut block) = (original.clone(), Vec::new());
        if is_trellis {
            assert_eq!(gptq_on_trellis(&mut weights, N_COLS, &quant, keep, &factor, &check_stop), Ok(true));
        } else {
            assert_eq!(gptq(&mut weights, N_COLS, &quant, keep, &factor, &check_stop), Ok(()));
        }
        let codes: Vec<i8> = weights.iter().map(|weight| (weight / step).round() as i8).collect();
        assert!(weights.iter().zip(&codes).all(|(&weight, &code)| weight == f32::from(code) * step));
        match is_trellis {
            true => write_trellis_block(&codes, N_COLS, &mut block),
            false => write_block(&codes, 8, &mut block),
        }
        (error(&original, &weights, &gram), block.len(), codes)
    }

    #[test]
    fn a_trellis_has_less_error_at_equal_bytes() {
        // A bit more for each weight divides the error by 4.
        let at_equal_bytes =
            |(error, n_bytes): (f64, usize)| error * (16.0 * n_bytes as f64 / (N_ROWS * N_COLS) as f64).exp2();
        for step in [0.5_f32, 1.0, 1.5] {
            let (plain, n_plain, _) = rounded(step, false, None);
            let (trellis, n_trellis, codes) = rounded(step / 2.0, true, None);
            assert!(follows(&codes, N_COLS) && n_trellis < n_plain);
            let ratio = at_equal_bytes((trellis, n_trellis)) / at_equal_bytes((plain, n_plain));
            assert!(ratio < 0.85, "{step}: {ratio} of the error");
        }
    }

    #[test]
    fn dropped_weights_stay_zero_where_a_path_has_them() {
        let mask = Mask::from_fn(N_ROWS, N_COLS, |row, col| (row + col) % 7 > 0 && row != 31);
        let (_, _, codes) = rounded(0.5, true, Some(&mask));
        assert!(follows(&codes, N_COLS));
        assert!((0..codes.len()).all(|at| mask.keeps(at / N_COLS, at % N_COLS) || codes[at] == 0));
    }
}
