//! The gradients of attention for one head.
//!
//! Scores are computed twice, once for a few queries and once for a few keys at a time. Each gradient is then a
//! product of a few rows and a matrix, and only a few rows of attention weights are in memory.
#![allow(unsafe_code)]

use super::attend::{BLOCK, HeadRows, ROWS, hide, hide_later, multiply, softmax};
use super::loops::{exp, on_path, sum_of_both};
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;

/// Queries, keys, values and output gradients of a head in the layouts of the products.
struct LaidOut<'a> {
    /// Queries, keys, values and gradients as columns, `[width, n_lanes]`.
    across: [&'a [f32]; 4],
    /// Queries, keys and gradients as rows, `[n, width_lanes]`.
    down: [&'a [f32]; 3],
    n_lanes: usize,
    width_lanes: usize,
}

/// For each query: the largest score, the inverse of the sum of `e^(score - largest)`, and the mean slope `Σ p
/// ∘ (do · v)`.
struct QueryRows<'a> {
    maxima: &'a mut [f32],
    inverses: &'a mut [f32],
    means: &'a mut [f32],
}

/// Computes the gradients of one head: writes `dq` and adds to `dk` and `dv`, which are matrices of all heads.
///
/// Masks padding and later keys like `attend`.
pub(super) fn attend_grad(
    level: SimdLevel,
    rows: [HeadRows; 4],
    (padding, is_causal): (&[bool], bool),
    [dq, dk, dv]: [&mut [f32]; 3],
    scratch: &mut Vec<f32>,
) {
    let [q, k, v, dy] = rows;
    let (n, width) = (q.n_rows, q.width);
    let (n_lanes, width_lanes) = (n.next_multiple_of(BLOCK), width.next_multiple_of(BLOCK));
    scratch.clear();
    scratch.resize(4 * width * n_lanes + 3 * n * width_lanes + 4 * n_lanes + 2 * ROWS * (n_lanes + width_lanes), 0.0);
    let (across, rest) = scratch.split_at_mut(4 * width * n_lanes);
    let (down, rest) = rest.split_at_mut(3 * n * width_lanes);
    for (rows, out) in rows.iter().zip(across.chunks_exact_mut(width * n_lanes)) {
        rows.lay_across(n_lanes, out);
    }
    for (rows, out) in [q, k, dy].iter().zip(down.chunks_exact_mut(n * width_lanes)) {
        rows.lay_down(width_lanes, out);
    }
    let across = std::array::from_fn(|at| &across[at * width * n_lanes..][..width * n_lanes]);
    let down = std::array::from_fn(|at| &down[at * n * width_lanes..][..n * width_lanes]);
    let laid_out = LaidOut { across, down, n_lanes, width_lanes };
    let (mask, rest) = rest.split_at_mut(n_lanes);
    let (maxima, rest) = rest.split_at_mut(n_lanes);
    let (inverses, rest) = rest.split_at_mut(n_lanes);
    let (means, rest) = rest.split_at_mut(n_lanes);
    hide(padding, n, mask);
    let mut found = QueryRows { maxima, inverses, means };
    by_queries(level, [q, dy], &laid_out, (mask, is_causal), &mut found, dq, rest);
    by_keys(level, [k, v], &laid_out, (padding, is_causal), &found, [dk, dv], rest);
}

/// Computes `dq = ds k`, and the statistics of each query that `by_keys` needs.
fn by_queries(
    level: SimdLevel,
    [q, dy]: [HeadRows; 2],
    laid_out: &LaidOut,
    (mask, is_causal): (&[f32], bool),
    found: &mut QueryRows,
    dq: &mut [f32],
    scratch: &mut [f32],
) {
    let (n, width, width_lanes) = (q.n_rows, q.width, laid_out.width_lanes);
    let ([_, keys, values, _], [_, key_rows, _]) = (laid_out.across, laid_out.down);
    let (blocks, sums) = scratch.split_at_mut(2 * ROWS * laid_out.n_lanes);
    let scale = 1.0 / (width as f32).sqrt();
    for first in (0..n).step_by(ROWS) {
        let n_rows = ROWS.min(n - first);
        let n_seen = if is_causal { first + n_rows } else { n };
        let seen_lanes = n_seen.next_multiple_of(BLOCK);
        let (weights, slopes) = blocks[..2 * ROWS * seen_lanes].split_at_mut(ROWS * seen_lanes);
        multiply(level, q.rows_from(first), (keys, laid_out.n_lanes), weights);
        if is_causal {
            hide_later(first, seen_lanes, weights);
        }
        let [mut maxima, mut inverses, mut means] = [[0.0; ROWS]; 3];
        softmax(level, weights, &mask[..seen_lanes], scale, [&mut maxima, &mut inverses]);
        inverses = inverses.map(|total| 1.0 / total);
        multiply(level, dy.rows_from(first), (values, laid_out.n_lanes), slopes);
        query_scores(level, weights, slopes, &inverses, scale, &mut means);
        let rows = std::array::from_fn(|row| &weights[row * seen_lanes..][..n_seen]);
        let sums = &mut sums[..ROWS * width_lanes];
        multiply(level, rows, (&key_rows[..n_seen * width_lanes], width_lanes), sums);
        for row in 0..n_rows {
            dq[(first + row) * q.stride + q.first..][..width].copy_from_slice(&sums[row * width_lanes..][..width]);
        }
        found.maxima[first..first + n_rows].copy_from_slice(&maxima[..n_rows]);
        found.inverses[first..first + n_rows].copy_from_slice(&inverses[..n_rows]);
        found.means[first..first + n_rows].copy_from_slice(&means[..n_rows]);
    }
}

/// Adds `pᵀ do` to `dv` and `dsᵀ q` to `dk`.
fn by_keys(
    level: SimdLevel,
    [k, v]: [HeadRows; 2],
    laid_out: &LaidOut,
    (padding, is_causal): (&[bool], bool),
    found: &QueryRows,
    [dk, dv]: [&mut [f32]; 2],
    scratch: &mut [f32],
) {
    let (n, width, n_lanes, width_lanes) = (k.n_rows, k.width, laid_out.n_lanes, laid_out.width_lanes);
    let ([queries, _, _, grads], [query_rows, _, grad_rows]) = (laid_out.across, laid_out.down);
    let (blocks, sums) = scratch.split_at_mut(2 * ROWS * n_lanes);
    let scale = 1.0 / (width as f32).sqrt();
    for first in (0..n).step_by(ROWS) {
        let n_rows = ROWS.min(n - first);
        // Queries before a key do not attend to it.
        let begin = if is_causal { first / BLOCK * BLOCK } else { 0 };
        let lanes = n_lanes - begin;
        let (weights, slopes) = blocks[..2 * ROWS * lanes].split_at_mut(ROWS * lanes);
        multiply(level, k.rows_from(first), (&queries[begin..], n_lanes), weights);
        multiply(level, v.rows_from(first), (&grads[begin..], n_lanes), slopes);
        key_scores(
            level,
            weights,
            slopes,
            [&found.maxima[begin..], &found.inverses[begin..], &found.means[begin..]],
            scale,
        );
        for (values, rows, out) in [(&mut *weights, grad_rows, &mut *dv), (&mut *slopes, query_rows, &mut *dk)] {
            clear_hidden(values, lanes, [first, begin], (padding, is_causal));
            let values = std::array::from_fn(|row| &values[row * lanes..][..n - begin]);
            let sums = &mut sums[..ROWS * width_lanes];
            multiply(level, values, (&rows[begin * width_lanes..], width_lanes), sums);
            for row in 0..n_rows {
                let out = &mut out[(first + row) * k.stride + k.first..][..width];
                out.iter_mut().zip(&sums[row * width_lanes..]).for_each(|(out, sum)| *out += *sum);
            }
        }
    }
}

/// Zeroes rows of keys from `first` and queries from `begin`, for padding and for queries before a key.
fn clear_hidden(values: &mut [f32], lanes: usize, [first, begin]: [usize; 2], (padding, is_causal): (&[bool], bool)) {
    for (row, values) in values.chunks_exact_mut(lanes).enumerate() {
        let is_hidden = padding.get(first + row).is_some_and(|is_padding| *is_padding);
        let n_hidden = if is_causal { (first + row - begin).min(lanes) } else { 0 };
        values[..if is_hidden { lanes } else { n_hidden }].fill(0.0);
    }
}

/// Replaces `e^(score - max)` of rows of queries by `ds = p ∘ (slope - mean) * scale`, with
/// `mean = Σ p ∘ slope`.
fn query_scores(
    level: SimdLevel,
    weights: &mut [f32],
    slopes: &[f32],
    inverses: &[f32; ROWS],
    scale: f32,
    means: &mut [f32; ROWS],
) {
    on_path!(
        level,
        query_rows(weights: &mut [f32], slopes: &[f32], inverses: &[f32; ROWS], scale: f32, means: &mut [f32; ROWS])
    );
}

#[inline(always)]
fn query_rows(weights: &mut [f32], slopes: &[f32], inverses: &[f32; ROWS], scale: f32, means: &mut [f32; ROWS]) {
    let lanes = weights.len() / ROWS;
    for at in 0..ROWS {
        let (weights, slopes) = (&mut weights[at * lanes..][..lanes], &slopes[at * lanes..][..lanes]);
        let mean = sum_of_both(weights, slopes, |sum, weight, slope| weight.mul_add(slope, sum)) * inverses[at];
        let factor = inverses[at] * scale;
        for i in 0..lanes {
            weights[i] = weights[i] * (slopes[i] - mean) * factor;
        }
        means[at] = mean;
    }
}

/// Replaces scores of rows of keys by `p = e^(score * scale - max) * inverse`, and slopes by `ds = p ∘ (slope -
/// mean) * scale`.
fn key_scores(level: SimdLevel, weights: &mut [f32], slopes: &mut [f32], found: [&[f32]; 3], scale: f32) {
    on_path!(level, key_rows(weights: &mut [f32], slopes: &mut [f32], found: [&[f32]; 3], scale: f32));
}

#[inline(always)]
fn key_rows(weights: &mut [f32], slopes: &mut [f32], [maxima, inverses, means]: [&[f32]; 3], scale: f32) {
    let lanes = weights.len() / ROWS;
    let (maxima, inverses, means) = (&maxima[..lanes], &inverses[..lanes], &means[..lanes]);
    for at in 0..ROWS {
        let (weights, slopes) = (&mut weights[at * lanes..][..lanes], &mut slopes[at * lanes..][..lanes]);
        for i in 0..lanes {
            // A masked score may exceed the maximum of its query; `clear_hidden` zeroes the result.
            let weight = exp(weights[i].mul_add(scale, -maxima[i])) * inverses[i];
            weights[i] = weight;
            slopes[i] = weight * (slopes[i] - means[i]) * scale;
        }
    }
}
