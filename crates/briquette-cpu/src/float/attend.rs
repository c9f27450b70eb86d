//! Attention for one head.
#![allow(unsafe_code)]

use super::loops::{exp, on_path, reduce};
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Queries that are multiplied together: with 4 vectors of keys, 24 sums in 32 registers.
pub(super) const ROWS: usize = 6;
/// Keys and values are padded to a multiple of this.
pub(super) const BLOCK: usize = 32;

/// The rows of one head in a matrix of all heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    values: &'a [f32],
    pub(super) n_rows: usize,
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) width: usize,
}

impl<'a> HeadRows<'a> {
    /// Returns `n_rows` rows, `stride` apart, with `width` elements from column `first`.
    pub(crate) fn new(values: &'a [f32], n_rows: usize, stride: usize, first: usize, width: usize) -> Self {
        assert!(values.len() == n_rows * stride && first + width <= stride, "a head in its matrix");
        Self { values, n_rows, stride, first, width }
    }

    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride + self.first..][..self.width]
    }

    /// Returns [`ROWS`] rows starting at `first`. Rows beyond the end repeat the last row.
    pub(super) fn rows_from(&self, first: usize) -> [&'a [f32]; ROWS] {
        std::array::from_fn(|row| self.row((first + row).min(self.n_rows - 1)))
    }

    /// Writes the rows as columns of `[width, n_lanes]`. Other elements of `out` stay unchanged.
    pub(super) fn lay_across(&self, n_lanes: usize, out: &mut [f32]) {
        for row in 0..self.n_rows {
            for (column, value) in self.row(row).iter().enumerate() {
                out[column * n_lanes + row] = *value;
            }
        }
    }

    /// Copies the rows to `[n_rows, n_lanes]`. Other elements of `out` stay unchanged.
    pub(super) fn lay_down(&self, n_lanes: usize, out: &mut [f32]) {
        for row in 0..self.n_rows {
            out[row * n_lanes..][..self.width].copy_from_slice(self.row(row));
        }
    }
}

/// Computes `softmax(q kᵀ / sqrt(width)) v` of one head into the matrix of all heads.
///
/// Masks padding, and with `is_causal` also later keys.
pub(crate) fn attend(
    level: SimdLevel,
    [q, k, v]: [HeadRows; 3],
    (padding, is_causal): (&[bool], bool),
    out: &mut [f32],
    scratch: &mut Vec<f32>,
) {
    let (n, width) = (q.n_rows, q.width);
    let (n_lanes, v_lanes) = (n.next_multiple_of(BLOCK), width.next_multiple_of(BLOCK));
    scratch.clear();
    scratch.resize(width * n_lanes + n * v_lanes + n_lanes + ROWS * (n_lanes + v_lanes), 0.0);
    let (keys, rest) = scratch.split_at_mut(width * n_lanes);
    let (values, rest) = rest.split_at_mut(n * v_lanes);
    let (mask, rest) = rest.split_at_mut(n_lanes);
    let (weights, sums) = rest.split_at_mut(ROWS * n_lanes);
    k.lay_across(n_lanes, keys);
    v.lay_down(v_lanes, values);
    hide(padding, n, mask);
    let scale = 1.0 / (width as f32).sqrt();
    for first in (0..n).step_by(ROWS) {
        let n_rows = ROWS.min(n - first);
        let n_seen = if is_causal { first + n_rows } else { n };
        let seen_lanes = n_seen.next_multiple_of(BLOCK);
        let weights = &mut weights[..ROWS * seen_lanes];
        multiply(level, q.rows_from(first), (keys, n_lanes), weights);
        if is_causal {
            hide_later(first, seen_lanes, weights);
        }
        let [mut maxima, mut totals] = [[0.0; ROWS]; 2];
        softmax(level, weights, &mask[..seen_lanes], scale, [&mut maxima, &mut totals]);
        let rows = std::array::from_fn(|row| &weights[row * seen_lanes..][..n_seen]);
        multiply(level, rows, (&values[..n_seen * v_lanes], v_lanes), sums);
        for row in 0..n_rows {
            let out = &mut out[(first + row) * q.stride + q.first..][..width];
            let inverse = 1.0 / totals[row];
            out.iter_mut().zip(&sums[row * v_lanes..]).for_each(|(out, sum)| *out = sum * inverse);
        }
    }
}

/// Sets the mask to minus infinity for padding, and for lanes from `n` that have no key.
pub(super) fn hide(padding: &[bool], n: usize, mask: &mut [f32]) {
    mask[n..].fill(f32::NEG_INFINITY);
    mask.iter_mut().zip(padding).filter(|(_, padding)| **padding).for_each(|(mask, _)| *mask = f32::NEG_INFINITY);
}

/// Sets scores `[ROWS, seen_lanes]` of keys after each query to minus infinity, for queries from `first`.
pub(super) fn hide_later(first: usize, seen_lanes: usize, scores: &mut [f32]) {
    for (row, scores) in scores.chunks_exact_mut(seen_lanes).enumerate() {
        scores[(first + row + 1).min(seen_lanes)..].fill(f32::NEG_INFINITY);
    }
}

/// Computes `out[r, n] = Σ_d rows[r][d] * matrix[d, n]`, in order of `d`.
///
/// `n` is a multiple of [`BLOCK`]. Rows of the matrix may be longer.
pub(super) fn multiply(level: SimdLevel, rows: [&[f32]; ROWS], (matrix, stride): (&[f32], usize), out: &mut [f32]) {
    let (depth, n_cols) = (rows[0].len(), out.len() / ROWS);
    assert!(rows.iter().all(|row| row.len() == depth), "rows of one length");
    assert!(n_cols <= stride && matrix.len().div_ceil(stride) == depth, "a matrix of rows that are long enough");
    assert!(depth == 0 || matrix.len() - (depth - 1) * stride >= n_cols, "a last row that is long enough");
    assert!(n_cols.is_multiple_of(BLOCK) && out.len() == ROWS * n_cols, "blocks of columns");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Vnni => {
            for at in (0..n_cols / 64 * 64).step_by(64) {
                // SAFETY: a level exists only if its instructions are available; the lengths were just
                // compared.
                unsafe { multiply_avx512::<4>(rows, (matrix, stride), n_cols, at, out) };
            }
            if n_cols % 64 != 0 {
                // SAFETY: as above.
                unsafe { multiply_avx512::<2>(rows, (matrix, stride), n_cols, n_cols - 32, out) };
            }
        }
        _ => on_path!(level, multiply_plain(rows: [&[f32]; ROWS], matrix: &[f32], stride: usize, out: &mut [f32])),
    }
}

#[inline(always)]
fn multiply_plain(rows: [&[f32]; ROWS], matrix: &[f32], stride: usize, out: &mut [f32]) {
    let n_cols = out.len() / ROWS;
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(n_cols)) {
        for at in (0..n_cols).step_by(BLOCK) {
            let mut sums = [0.0_f32; BLOCK];
            for (factor, matrix) in row.iter().zip(matrix.chunks(stride)) {
                for (sum, value) in sums.iter_mut().zip(&matrix[at..at + BLOCK]) {
                    *sum = factor.mul_add(*value, *sum);
                }
            }
            out[at..at + BLOCK].copy_from_slice(&sums);
        }
    }
}

/// Computes `16 * VECTORS` columns starting at `at`.
///
/// # Safety
/// All rows have the same length. `matrix` has as many rows of `n_cols`, `stride` apart. `out` has [`ROWS`]
/// rows of `n_cols`. `at + 16 * VECTORS <= n_cols`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
unsafe fn multiply_avx512<const VECTORS: usize>(
    rows: [&[f32]; ROWS],
    (matrix, stride): (&[f32], usize),
    n_cols: usize,
    at: usize,
    out: &mut [f32],
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for d in 0..rows[0].len() {
        // SAFETY: row `d` of the matrix has 16 * VECTORS elements from `at`, and every row has an element `d`.
        unsafe {
            let from = matrix.as_ptr().add(d * stride + at);
            let mut vectors = [_mm512_setzero_ps(); VECTORS];
            for i in 0..VECTORS {
                vectors[i] = _mm512_loadu_ps(from.add(16 * i));
            }
            for row in 0..ROWS {
                let factor = _mm512_set1_ps(*rows[row].get_unchecked(d));
                for i in 0..VECTORS {
                    sums[row][i] = _mm512_fmadd_ps(factor, vectors[i], sums[row][i]);
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: `out` has these elements.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(row * n_cols + at + 16 * i), *sum) };
        }
    }
}

/// Replaces scores by `e^(score * scale + mask - max)`, and stores the maximum and the sum of each row.
pub(super) fn softmax(level: SimdLevel, scores: &mut [f32], mask: &[f32], scale: f32, found: [&mut [f32; ROWS]; 2]) {
    on_path!(level, softmax_rows(scores: &mut [f32], mask: &[f32], scale: f32, found: [&mut [f32; ROWS]; 2]));
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
fn softmax_rows(scores: &mut [f32], mask: &[f32], scale: f32, [maxima, totals]: [&mut [f32; ROWS]; 2]) {
    for (at, row) in scores.chunks_exact_mut(mask.len()).enumerate() {
        let row = &mut row[..mask.len()];
        for i in 0..mask.len() {
            row[i] = row[i].mul_add(scale, mask[i]);
        }
        let larger = |a: f32, b: f32| if a < b { b } else { a };
        let max = reduce(row, f32::NEG_INFINITY, larger, larger);
        for score in row.iter_mut() {
            *score = exp(*score - max);
        }
        maxima[at] = max;
        totals[at] = reduce(row, 0.0, |sum, value| sum + value, |a, b| a + b);
    }
}
