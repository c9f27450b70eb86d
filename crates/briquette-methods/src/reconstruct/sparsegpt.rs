//! SparseGPT: dropping weights a block of columns at a time, with each error made up for by the columns that follow.

use crate::prune::{Threshold, select};
use crate::reconstruct::strip::{BLOCK, RowStrip, STRIP, blocks};
use crate::reconstruct::{DropRule, InverseFactor};
use briquette_core::{Mask, bits};
use rayon::prelude::*;
use std::ops::Range;

/// Drops weights of `[rows, n_cols]` and moves those that stay, so that outputs stay close. For each block of 128 columns those of lowest
/// `w_k²/U_kk²` go, all rows together, by the weights as they have been moved so far; for `NOfM` those of each run, when its first column is
/// reached. Then, column by column, `w_l ← w_l − (w_k − ŵ_k)/U_kk · U_kl` for all later `l`, with `ŵ_k` 0 where the weight goes.
///
/// Returns what is kept. A weight that `given` drops is dropped and counts: no others go for it. Each block drops its share of the count,
/// with what rounding leaves over passed on, so that the whole is exact; blocks where `given` drops more than their share drop nothing else,
/// the others less. (The reference takes all that are at most the `share`-th in order, one more than the share of each block.) Of equal
/// weights the first by row and column goes. Dropped weights are exactly 0.0. Of `NOfM` runs in which `given` drops more than `m − n`,
/// fewer than `n` stay. Where the factor [fell back](crate::reconstruct::FactorOutcome::fallback), weights go by magnitude, and the others stay as they are.
///
/// `go_on` is asked for every block.
///
/// Source: Frantar and Alistarh, "SparseGPT", 2023, algorithm 1 and its `fasterprune`; a mask that is given as in llm-compressor's
/// `sparsify_weight`.
///
/// # Errors
/// The first that `go_on` has; the weights are then of no use.
///
/// # Panics
/// If the lengths disagree, more are to go than there are, `m` does not divide the row, or `NOfM` meets a factor by activation order.
pub fn sparsegpt<E: Send>(
    weights: &mut [f32],
    n_cols: usize,
    sparsity: DropRule,
    given: Option<&Mask>,
    factor: &InverseFactor,
    go_on: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<Mask, E> {
    assert_eq!(factor.n_cols(), n_cols, "a factor for as many columns");
    assert!(weights.len().is_multiple_of(n_cols.max(1)), "whole rows of weights");
    let n_rows = weights.len() / n_cols.max(1);
    assert!(given.is_none_or(|given| given.dim() == (n_rows, n_cols)), "a bit for each weight");
    if weights.is_empty() {
        return Ok(Mask::from_fn(n_rows, n_cols, |_, _| true));
    }
    let all = || vec![0xff; n_rows * Mask::row_bytes(n_cols)];
    let mut keep = given.map_or_else(all, |given| given.as_bits().to_vec());
    match sparsity {
        DropRule::NOfM { n, m } => drop_in_runs(weights, (n, m), &mut keep, factor, go_on)?,
        DropRule::Count(n_drop) => drop_in_blocks(weights, (n_rows, n_drop), &mut keep, factor, go_on)?,
        DropRule::CountPerRow(n_drop) => drop_in_blocks(weights, (1, n_drop), &mut keep, factor, go_on)?,
    }
    // Bits beyond a row are 0 in every mask.
    Ok(Mask::from_fn(n_rows, n_cols, |row, col| bits::get(&keep[row * Mask::row_bytes(n_cols)..], col)))
}

/// All but `n` of every `m`, each strip on its own.
fn drop_in_runs<E: Send>(
    weights: &mut [f32],
    (n, m): (usize, usize),
    keep: &mut [u8],
    factor: &InverseFactor,
    go_on: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(), E> {
    let n_cols = factor.n_cols();
    assert!(n <= m && m > 0 && n_cols.is_multiple_of(m), "{n} of every {m} in rows of {n_cols}");
    assert!(!factor.is_ordered(), "runs of neighbours are settled in the order that they are stored in");
    let row_bytes = Mask::row_bytes(n_cols);
    let strips = weights.par_chunks_mut(STRIP * n_cols).zip(keep.par_chunks_mut(STRIP * row_bytes));
    strips.try_for_each(|(weights, keep)| {
        let mut strip = RowStrip::new(weights, factor);
        let (mut scores, mut kept) = (vec![0.0; m], vec![0; m.div_ceil(8)]);
        blocks(n_cols, (BLOCK / m).max(1) * m).try_for_each(|block| {
            go_on()?;
            strip.sweep(block, |strip, k, mut values| {
                if k % m == 0 {
                    let columns: Vec<_> = (k..k + m).map(|k| strip.column(k)).collect();
                    for (lane, keep) in keep.chunks_exact_mut(row_bytes).enumerate() {
                        for (i, score) in scores.iter_mut().enumerate() {
                            let found = columns[i][lane].abs() * factor.pivots()[k + i];
                            // What is given goes before all others.
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

/// `n_drop` of every `n_together` rows, all strips a block at a time.
fn drop_in_blocks<E: Send>(
    weights: &mut [f32],
    (n_together, n_drop): (usize, usize),
    keep: &mut [u8],
    factor: &InverseFactor,
    go_on: &(impl Fn() -> Result<(), E> + Sync),
) -> Result<(), E> {
    let (n_cols, order) = (factor.n_cols(), factor.order());
    assert!(n_drop <= n_together * n_cols, "{n_drop} of {} weights", n_together * n_cols);
    let row_bytes = Mask::row_bytes(n_cols);
    let quotas: Vec<Vec<usize>> =
        keep.par_chunks(n_together * row_bytes).map(|keep| quotas(keep, order, n_drop)).collect();
    let mut strips: Vec<RowStrip> =
        weights.chunks_mut(STRIP * n_cols).map(|weights| RowStrip::new(weights, factor)).collect();
    for (place, block) in blocks(n_cols, BLOCK).enumerate() {
        go_on()?;
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

/// `|w_k| / U_kk` of a block's columns, row by row: in the order of its square.
fn score(strip: &RowStrip, factor: &InverseFactor, block: Range<usize>, scores: &mut [f32]) {
    for (i, k) in block.clone().enumerate() {
        let (column, pivot) = (strip.column(k), factor.pivots()[k]);
        for (scores, value) in scores.chunks_exact_mut(block.len()).zip(column) {
            scores[i] = value.abs() * pivot;
        }
    }
}

/// How many more weights each block of columns is to drop, `n_drop` together with those that are dropped: in proportion to what it lacks.
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
    // In units of one weight of all: n_drop of every n_rows · n_cols.
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

/// Drops the `n_drop` weights of lowest score of those that are kept, some columns of some rows.
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
