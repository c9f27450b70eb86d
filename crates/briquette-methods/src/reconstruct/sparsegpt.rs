//! SparseGPT: prunes weights one block of columns at a time. Later columns compensate for each error.

use crate::prune::{SparsityPattern, Threshold, select};
use crate::reconstruct::InverseFactor;
use crate::reconstruct::strip::{BLOCK, RowStrip, STRIP, blocks};
use briquette_core::{Mask, bits};
use rayon::prelude::*;
use std::ops::Range;

/// Prunes weights `[rows, n_cols]` and updates the remaining ones to preserve the outputs.
///
/// For each block of 128 columns, the weights with the lowest `w_k²/U_kk²` in all rows are pruned, by their
/// values updated so far. With `NOfM`, each run of `m` columns is pruned when its first column is reached.
/// Then, column by column, `w_l ← w_l − (w_k − ŵ_k)/U_kk · U_kl` for all later `l`, where `ŵ_k` is 0 if the
/// weight is pruned.
///
/// Returns the mask. Weights that `given` drops are dropped and count toward the total. Each block prunes its
/// share of the count, and carries the rounding remainder to the next block, so that the total is exact. Blocks
/// in which `given` drops more than that share prune no other weights, and the remaining blocks prune fewer.
/// (The reference prunes all weights up to the `share`-th in order, one more than each block's share.) Among
/// equal weights the first by row and column is pruned. Pruned weights are exactly 0.0.
///
/// `NOfM` runs in which `given` drops more than `m − n` keep fewer than `n`. If the factor [fell
/// back](crate::reconstruct::FactorOutcome::fallback), weights are pruned by magnitude, and the others stay
/// unchanged. Weights of dead inputs are pruned first, and the others of them stay unchanged. `check_stop` is
/// called for every block.
///
/// Source: Frantar and Alistarh, "SparseGPT", 2023, algorithm 1 and its `fasterprune`, which sets all weights of
/// dead inputs to 0; given masks as in llm-compressor's `sparsify_weight`.
///
/// # Errors
/// The first error of `check_stop`; the weights are then invalid.
///
/// # Panics
/// If the lengths disagree, the rule drops more weights than there are, `m` does not divide the row, or `NOfM`
/// is used with activation order.
pub fn sparsegpt<E: Send>(
    weights: &mut [f32],
    n_cols: usize,
    sparsity: SparsityPattern,
    given: Option<&Mask>,
    factor: &InverseFactor,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<Mask, E> {
    assert_eq!(factor.n_cols(), n_cols, "the factor has n_cols columns");
    assert!(weights.len().is_multiple_of(n_cols.max(1)), "whole rows of weights");
    let n_rows = weights.len() / n_cols.max(1);
    assert!(given.is_none_or(|given| given.dim() == (n_rows, n_cols)), "the mask has the shape of the weights");
    if weights.is_empty() {
        return Ok(Mask::from_fn(n_rows, n_cols, |_, _| true));
    }
    let all = || vec![0xff; n_rows * Mask::row_bytes(n_cols)];
    let mut keep = given.map_or_else(all, |given| given.as_bits().to_vec());
    match sparsity {
        SparsityPattern::NOfM { n, m } => drop_in_runs(weights, (n, m), &mut keep, factor, check_stop)?,
        SparsityPattern::Unstructured(n_drop) => {
            drop_in_blocks(weights, (n_rows, n_drop), &mut keep, factor, check_stop)?
        }
        SparsityPattern::PerRow(n_drop) => drop_in_blocks(weights, (1, n_drop), &mut keep, factor, check_stop)?,
    }
    // The padding bits of every row of a mask are 0.
    Ok(Mask::from_fn(n_rows, n_cols, |row, col| bits::get(&keep[row * Mask::row_bytes(n_cols)..], col)))
}

/// Prunes all but `n` of every `m` weights, each strip independently.
fn drop_in_runs<E: Send>(
    weights: &mut [f32],
    (n, m): (usize, usize),
    keep: &mut [u8],
    factor: &InverseFactor,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(), E> {
    let n_cols = factor.n_cols();
    assert!(n <= m && m > 0 && n_cols.is_multiple_of(m), "{n} of every {m} in rows of {n_cols}");
    assert!(!factor.is_ordered(), "N:M sparsity requires stored column order");
    let row_bytes = Mask::row_bytes(n_cols);
    let strips = weights.par_chunks_mut(STRIP * n_cols).zip(keep.par_chunks_mut(STRIP * row_bytes));
    strips.try_for_each(|(weights, keep)| {
        let mut strip = RowStrip::new(weights, factor);
        let (mut scores, mut kept) = (vec![0.0; m], vec![0; m.div_ceil(8)]);
        blocks(n_cols, (BLOCK / m).max(1) * m).try_for_each(|block| {
            check_stop()?;
            strip.sweep(block, |strip, k, mut values| {
                if k % m == 0 {
                    let columns: Vec<_> = (k..k + m).map(|k| strip.column(k)).collect();
                    for (lane, keep) in keep.chunks_exact_mut(row_bytes).enumerate() {
                        for (i, score) in scores.iter_mut().enumerate() {
                            let found = columns[i][lane].abs() * cost(factor, k + i);
                            // Weights that `given` drops score 0, so they are dropped first.
                            *score = if bits::get(keep, k + i) { found.max(f32::MIN_POSITIVE) } else { 0.0 };
                        }
                        select::n_of_m_row(&scores, n, m, &mut kept);
                        (0..m).filter(|&i| !bits::get(&kept, i)).for_each(|i| clear(keep, k + i));
                    }
                }
                let rows = values.iter_mut().zip(keep.chunks_exact(row_bytes));
                rows.filter(|(_, keep)| !bits::get(keep, k)).for_each(|(value, _)| *value = 0.0);
                values
            });
            Ok(())
        })
    })
}

/// Prunes `n_drop` weights of every `n_together` rows, all strips one block at a time.
fn drop_in_blocks<E: Send>(
    weights: &mut [f32],
    (n_together, n_drop): (usize, usize),
    keep: &mut [u8],
    factor: &InverseFactor,
    check_stop: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(), E> {
    let (n_cols, order) = (factor.n_cols(), factor.order());
    assert!(n_drop <= n_together * n_cols, "{n_drop} of {} weights", n_together * n_cols);
    let row_bytes = Mask::row_bytes(n_cols);
    let quotas: Vec<Vec<usize>> =
        keep.par_chunks(n_together * row_bytes).map(|keep| quotas(keep, order, n_drop)).collect();
    let mut strips: Vec<RowStrip> =
        weights.chunks_mut(STRIP * n_cols).map(|weights| RowStrip::new(weights, factor)).collect();
    for (place, block) in blocks(n_cols, BLOCK).enumerate() {
        check_stop()?;
        let width = block.len();
        let mut scores = vec![0.0; keep.len() / row_bytes * width];
        let of_strips = strips.par_iter().zip(scores.par_chunks_mut(STRIP * width));
        of_strips.for_each(|(strip, scores)| score(strip, factor, block.clone(), scores));
        let together = keep.par_chunks_mut(n_together * row_bytes).zip(scores.par_chunks(n_together * width));
        together.zip(&quotas).for_each(|((keep, scores), quotas)| {
            drop_smallest(scores, &order[block.clone()], quotas[place], keep);
        });
        strips.par_iter_mut().zip(keep.par_chunks(STRIP * row_bytes)).for_each(|(strip, keep)| {
            strip.sweep(block.clone(), |_, k, mut values| {
                let rows = values.iter_mut().zip(keep.chunks_exact(row_bytes));
                rows.filter(|(_, keep)| !bits::get(keep, order[k])).for_each(|(value, _)| *value = 0.0);
                values
            });
        });
    }
    Ok(())
}

/// Computes `|w_k| / U_kk` of a block's columns, row-major; it has the same order as its square.
fn score(strip: &RowStrip, factor: &InverseFactor, block: Range<usize>, scores: &mut [f32]) {
    for (i, k) in block.clone().enumerate() {
        let (column, cost) = (strip.column(k), cost(factor, k));
        for (scores, value) in scores.chunks_exact_mut(block.len()).zip(column) {
            scores[i] = value.abs() * cost;
        }
    }
}

/// Returns `1 / U_kk`, or 0 for a dead input, whose weights are pruned first.
fn cost(factor: &InverseFactor, k: usize) -> f32 {
    if factor.is_dead()[factor.order()[k]] { 0.0 } else { factor.pivots()[k] }
}

/// Returns how many more weights each block of columns prunes, so that the total is `n_drop`.
///
/// The shares are proportional to the number of weights that each block lacks.
fn quotas(keep: &[u8], order: &[usize], n_drop: usize) -> Vec<usize> {
    let row_bytes = Mask::row_bytes(order.len());
    let n_rows = keep.len() / row_bytes;
    let n_given = |cols: &[usize]| {
        keep.chunks_exact(row_bytes)
            .map(|keep| cols.iter().filter(|&&col| !bits::get(keep, col)).count())
            .sum::<usize>()
    };
    let given: Vec<usize> = order.chunks(BLOCK).map(n_given).collect();
    let n_more = n_drop.saturating_sub(given.iter().sum());
    // In units of 1 / (n_rows · n_cols) weights, from n_drop of every n_rows · n_cols weights.
    let lacks = order.chunks(BLOCK).zip(&given).map(|(cols, &given)| {
        (n_drop as u128 * cols.len() as u128).saturating_sub(given as u128 * order.len() as u128)
    });
    let lacks: Vec<u128> = lacks.collect();
    let total = lacks.iter().sum::<u128>().max(1);
    let (mut lacked, mut dropped) = (0, 0);
    let quotas = lacks.iter().map(|lack| {
        lacked += lack;
        let until = ((n_more as u128 * lacked + total / 2) / total) as usize;
        let quota = until - dropped;
        dropped = until;
        quota
    });
    let quotas: Vec<usize> = quotas.collect();
    debug_assert_eq!(quotas.iter().sum::<usize>(), if n_rows > 0 { n_more } else { 0 });
    quotas
}

/// Drops the `n_drop` kept weights of lowest score in some columns of some rows.
fn drop_smallest(scores: &[f32], cols: &[usize], n_drop: usize, keep: &mut [u8]) {
    if n_drop == 0 {
        return;
    }
    let row_bytes = keep.len() * cols.len() / scores.len();
    let rows = || scores.chunks_exact(cols.len()).enumerate();
    let kept: Vec<f32> = rows()
        .flat_map(|(row, scores)| {
            let keep = &keep[row * row_bytes..];
            scores.iter().zip(cols).filter(|(_, col)| bits::get(keep, **col)).map(|(&score, _)| score)
        })
        .collect();
    let Threshold { key, mut n_ties } = select::threshold_of(&kept, n_drop);
    for (row, scores) in rows() {
        let keep = &mut keep[row * row_bytes..];
        for (score, &col) in scores.iter().zip(cols) {
            let found = score.to_bits();
            let is_tie = found == key && n_ties > 0;
            if bits::get(keep, col) && (found < key || is_tie) {
                n_ties -= usize::from(is_tie);
                clear(keep, col);
            }
        }
    }
}

/// Clears bit `index`.
fn clear(bits: &mut [u8], index: usize) {
    bits[index / 8] &= !(1 << (index % 8));
}
