//! AVX-512 with VNNI.
#![allow(unsafe_code)]

mod depthwise;
mod epilogue;
mod quantize;

use super::block::OutputBlock;
use super::operands::{PANEL, PanelColumns, PatchRows, RowBlock};
use super::rounded_rows::{CodeRounding, RoundedRows};
use super::scalar;
use super::sparse_panels::SparsePanels;
pub(super) use depthwise::depthwise_row;
pub(super) use epilogue::finish_rows;
use epilogue::{CodeEpilogue, PanelEpilogue};
pub(super) use quantize::{add_to_ranges, quantize, quantize_columns, value_range};
use std::arch::x86_64::*;

/// Rows that are multiplied together: 28 sums, 2 vectors of weights and a code in 32 registers.
pub(super) const MAX_ROWS: usize = 14;
/// The prefetch distance of weights, in bytes.
const AHEAD: usize = 2048;

/// See [`scalar::depthwise`]. Codes and weights fit in 16 bits, and their products are added in 32 bits.
///
/// # Safety
/// Each tap has as many codes and weights as there are sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn depthwise(taps: &[&[u8]], weights: &[i32], sums: &mut [i32]) {
    let n = sums.len();
    for at in (0..n).step_by(16) {
        let mask = ((1_u32 << (n - at).min(16)) - 1) as u16;
        let mut sum = _mm512_setzero_si512();
        for (t, codes) in taps.iter().enumerate() {
            // SAFETY: the caller guarantees channels `at..n`, and only those are read.
            unsafe {
                let codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, codes.as_ptr().add(at).cast()));
                let weights = _mm512_maskz_loadu_epi32(mask, weights.as_ptr().add(t * n + at));
                sum = _mm512_dpwssd_epi32(sum, codes, weights);
            }
        }
        // SAFETY: only sums `at..n` are written.
        unsafe { _mm512_mask_storeu_epi32(sums.as_mut_ptr().add(at), mask, sum) };
    }
}

/// See [`scalar::requantize`].
///
/// # Safety
/// There are as many values, factors and shifts as codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn requantize(values: &[f32], rounding: &CodeRounding, codes: &mut [u8]) {
    let CodeRounding { factors, shifts, bounds: [low, high], .. } = *rounding;
    let (low, high) = (_mm512_set1_ps(low), _mm512_set1_ps(high));
    for at in (0..codes.len()).step_by(16) {
        let mask = ((1_u32 << (codes.len() - at).min(16)) - 1) as u16;
        // SAFETY: only elements `at..codes.len()` are read and written.
        unsafe {
            let value = _mm512_maskz_loadu_ps(mask, values.as_ptr().add(at));
            let factor = _mm512_maskz_loadu_ps(mask, factors.as_ptr().add(at));
            let shift = _mm512_maskz_loadu_ps(mask, shifts.as_ptr().add(at));
            // The second operand is the result for NaN.
            let steps = _mm512_max_ps(_mm512_add_ps(_mm512_mul_ps(value, factor), shift), low);
            let rounded = _mm512_cvtps_epi32(_mm512_min_ps(steps, high));
            _mm_mask_storeu_epi8(codes.as_mut_ptr().add(at).cast(), mask, _mm512_cvtepi32_epi8(rounded));
        }
    }
}

/// [`scalar::dot`] compiled for wider registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn dot(codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    scalar::dot(codes, weights, zero)
}

/// A panel of weights as read by a tile.
#[derive(Clone, Copy)]
enum PanelView<'a> {
    Dense(&'a [i8]),
    Sparse(&'a [u64], &'a [i8]),
}

impl PanelView<'_> {
    const fn n_groups(self) -> usize {
        match self {
            Self::Dense(panel) => panel.len() / (4 * PANEL),
            Self::Sparse(masks, _) => masks.len() / 2,
        }
    }
}

/// Reads a panel group by group.
///
/// For a sparse panel, `masks` points to the masks of the next group and `codes` to its first value; otherwise `codes` points to the next
/// group. Memory `ahead` bytes after `codes` is prefetched.
struct PanelReader {
    codes: *const i8,
    masks: *const u64,
    ahead: usize,
}

impl PanelReader {
    const fn new(weights: PanelView, ahead: usize) -> Self {
        match weights {
            PanelView::Dense(panel) => Self { codes: panel.as_ptr(), masks: std::ptr::null(), ahead },
            PanelView::Sparse(masks, values) => Self { codes: values.as_ptr(), masks: masks.as_ptr(), ahead },
        }
    }

    /// Returns the weights of the next group of a dense panel: 16 outputs, and 16 more.
    ///
    /// # Safety
    /// There is a next group.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn next_dense(&mut self) -> [__m512i; 2] {
        // SAFETY: a group has 128 bytes. A prefetch accepts any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.codes.wrapping_add(self.ahead));
            _mm_prefetch::<_MM_HINT_T0>(self.codes.wrapping_add(self.ahead + 64));
            let weights = self.codes;
            self.codes = weights.add(4 * PANEL);
            [_mm512_loadu_si512(weights.cast()), _mm512_loadu_si512(weights.add(64).cast())]
        }
    }

    /// Returns the same of a sparse panel.
    ///
    /// # Safety
    /// There is a next group, and values come from [`super::SparsePanels`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    unsafe fn next_sparse(&mut self) -> [__m512i; 2] {
        // SAFETY: a group has 2 masks, and 64 bytes are readable after the last value. A prefetch accepts any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.codes.wrapping_add(self.ahead));
            let masks = [*self.masks, *self.masks.add(1)];
            let second = self.codes.add(masks[0].count_ones() as usize);
            let low = _mm512_maskz_expand_epi8(masks[0], _mm512_loadu_si512(self.codes.cast()));
            let high = _mm512_maskz_expand_epi8(masks[1], _mm512_loadu_si512(second.cast()));
            self.codes = second.add(masks[1].count_ones() as usize);
            self.masks = self.masks.add(2);
            [low, high]
        }
    }
}

/// Adds the products of one group of inputs, for `V` vectors of 16 outputs.
///
/// # Safety
/// At `codes`, 4 codes are readable in each of `M` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply_group<const M: usize, const V: usize>(
    codes: *const u8,
    stride: usize,
    weights: [__m512i; 2],
    sums: &mut [[__m512i; 2]; M],
) {
    for (i, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller guarantees row `i`.
        let code = _mm512_set1_epi32(unsafe { codes.add(i * stride).cast::<i32>().read_unaligned() });
        sums[0] = _mm512_dpbusd_epi32(sums[0], code, weights[0]);
        if V > 1 {
            sums[1] = _mm512_dpbusd_epi32(sums[1], code, weights[1]);
        }
    }
}

/// Calls `tile` for `$m` rows, unrolled to give enough independent sums.
macro_rules! for_rows {
    ($m:expr, $args:tt, $($rows:literal * $unroll:literal)*) => {
        match $m {
            $($rows => tile::<$rows, $unroll> $args,)*
            _ => unreachable!("more rows than a tile has"),
        }
    };
}

/// Defines a module whose `multiply` multiplies rows by panels of one kind. Dense panels need no byte expansion (VBMI2).
macro_rules! products {
    ($module:ident, $next:ident * $vectors:literal, $rows:ty, $epilogue:ident, $out:ty, $features:literal) => {
        mod $module {
            use super::*;

            /// Multiplies all rows by a panel, in tiles. The second tile prefetches `next`, because its own panel is
            /// already in the caches.
            ///
            /// # Safety
            /// Rows are at least as long as the panel is deep, in whole groups of each run. The panel is of the kind of this module; sparse weights come from
            /// [`SparsePanels`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn multiply(
                rows: $rows,
                (weights, next): (PanelView, usize),
                epilogue: &$epilogue,
                out: &mut $out,
            ) {
                let n_tiles = rows.len().div_ceil(MAX_ROWS);
                let mut first = 0;
                for i in 0..n_tiles {
                    // Tiles of similar height: 15 rows are 8 and 7, not 14 and 1.
                    let m = (rows.len() - first).div_ceil(n_tiles - i);
                    // SAFETY: rows `first..first + m` exist; the caller guarantees the rest.
                    unsafe {
                        let ahead = if i == 1 { next } else { AHEAD };
                        for_rows!(m, (rows, first, (weights, ahead), epilogue, out), 1 * 4 2 * 4 3 * 2 4 * 2 5 * 2 6 * 2 7 * 2
                            8 * 1 9 * 1 10 * 1 11 * 1 12 * 1 13 * 1 14 * 1);
                    }
                    first += m;
                }
            }

            /// Multiplies `M` rows by one panel, `U` groups of 4 inputs at a time.
            ///
            /// # Safety
            /// See [`multiply`], for rows `first..first + M`.
            #[target_feature(enable = $features)]
            unsafe fn tile<const M: usize, const U: usize>(
                rows: $rows,
                first: usize,
                (weights, ahead): (PanelView, usize),
                epilogue: &$epilogue,
                out: &mut $out,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let sums = sums::<M, U>(rows, first, (weights, ahead), epilogue.start());
                    epilogue.store(&sums, first, rows, out);
                }
            }

            /// Returns the sums of [`tile`], which begin with `start`. They stay in registers, because no index is computed at run time.
            ///
            /// # Safety
            /// See [`tile`].
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn sums<const M: usize, const U: usize>(
                rows: $rows,
                first: usize,
                (weights, ahead): (PanelView, usize),
                start: [__m512i; 2],
            ) -> [[__m512i; 2]; M] {
                let mut codes = rows.codes[first * rows.stride..].as_ptr();
                let mut sums = [[[_mm512_setzero_si512(); 2]; M]; U];
                sums[0] = [start; M];
                let [n_runs, between] = rows.runs();
                let (n_groups, mut reader) = (weights.n_groups() / n_runs, PanelReader::new(weights, ahead));
                // SAFETY: one step per group, which has 4 codes in each row.
                unsafe {
                    for _ in 0..n_runs {
                        for _ in 0..n_groups / U {
                            for sums in &mut sums {
                                multiply_group::<M, $vectors>(codes, rows.stride, reader.$next(), sums);
                                codes = codes.add(4);
                            }
                        }
                        for _ in 0..n_groups % U {
                            multiply_group::<M, $vectors>(codes, rows.stride, reader.$next(), &mut sums[0]);
                            codes = codes.add(4);
                        }
                        codes = codes.wrapping_add(between).wrapping_sub(4 * n_groups);
                    }
                }
                let mut all = sums[0];
                for more in &sums[1..] {
                    for i in 0..M {
                        for j in 0..2 {
                            all[i][j] = _mm512_add_epi32(all[i][j], more[i][j]);
                        }
                    }
                }
                all
            }
        }
    };
}

products!(dense, next_dense * 2, RowBlock, PanelEpilogue, OutputBlock, "avx512f,avx512bw,avx512vl,avx512vnni");
products!(codes, next_dense * 2, PatchRows, CodeEpilogue, RoundedRows, "avx512f,avx512bw,avx512vl,avx512vnni");
products!(few_codes, next_dense * 1, PatchRows, CodeEpilogue, RoundedRows, "avx512f,avx512bw,avx512vl,avx512vnni");
products!(
    sparse,
    next_sparse * 2,
    RowBlock,
    PanelEpilogue,
    OutputBlock,
    "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt"
);

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn multiply_panel(
    rows: RowBlock,
    panel: &[i8],
    next: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let after = if next.is_empty() { AHEAD } else { next.as_ptr().addr().wrapping_sub(panel.as_ptr().addr()) };
    // SAFETY: rows are as deep as the panel.
    unsafe { dense::multiply(rows, (PanelView::Dense(panel), after), &PanelEpilogue::new(columns), out) }
}

/// Multiplies patches by a panel, and rounds the outputs to codes.
///
/// # Safety
/// The patches have as many codes as the panel is deep.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn multiply_to_codes(
    rows: PatchRows,
    [panel, next]: [&[i8]; 2],
    (columns, rounding): (&PanelColumns, &CodeRounding),
    out: &mut RoundedRows,
) {
    let after = if next.is_empty() { AHEAD } else { next.as_ptr().addr().wrapping_sub(panel.as_ptr().addr()) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (weights, epilogue) = ((PanelView::Dense(panel), after), CodeEpilogue::new(columns, rounding));
        match columns.n {
            0..=16 => few_codes::multiply(rows, weights, &epilogue, out),
            _ => codes::multiply(rows, weights, &epilogue, out),
        }
    }
}

/// See [`super::Kernel::multiply_sparse_panel`].
///
/// # Safety
/// The caller has checked the shapes and byte expansion (VBMI2); the panel comes from [`super::SparsePanels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_sparse_panel(
    rows: RowBlock,
    masks: &[u64],
    values: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    // SAFETY: rows are as deep as the panel.
    unsafe { sparse::multiply(rows, (PanelView::Sparse(masks, values), AHEAD), &PanelEpilogue::new(columns), out) }
}

/// Writes all codes of a sparse panel, including zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) fn expand_panel(panels: &SparsePanels, index: usize, codes: &mut [i8]) {
    let (masks, values) = panels.panel(index);
    // SAFETY: the values belong to the masks, and 64 bytes follow the last value of a sparse panel.
    unsafe { expand(masks, values.as_ptr(), codes) };
}

/// Expands values to the set bits of masks, 64 codes per mask. Returns a pointer to the next value.
///
/// # Safety
/// There are as many values as the masks have set bits, and 64 bytes are readable after the last value.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn expand(masks: &[u64], values: *const i8, codes: &mut [i8]) -> *const i8 {
    let mut next = values;
    for (mask, codes) in masks.iter().zip(codes.as_chunks_mut::<64>().0) {
        // SAFETY: the caller guarantees the values; `codes` has 64; a prefetch accepts any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(AHEAD));
            let spread = _mm512_maskz_expand_epi8(*mask, _mm512_loadu_si512(next.cast()));
            _mm512_storeu_si512(codes.as_mut_ptr().cast(), spread);
            next = next.add(mask.count_ones() as usize);
        }
    }
    next
}
