//! AVX-512 with VNNI.
#![allow(unsafe_code)]

mod quantize;

use super::block::OutputBlock;
use super::operands::{PANEL, PanelColumns, RowBlock};
use super::scalar;
use super::sparse_panels::SparsePanels;
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

/// [`scalar::dot`] compiled for wider registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn dot(codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    scalar::dot(codes, weights, zero)
}

/// The epilogue of a panel, with masks that limit stores to its outputs.
struct PanelEpilogue<'a> {
    columns: &'a PanelColumns,
    mask: [u16; 2],
}

impl<'a> PanelEpilogue<'a> {
    fn new(columns: &'a PanelColumns) -> Self {
        let bits = ((1_u64 << columns.n) - 1) as u32;
        Self { columns, mask: [bits as u16, (bits >> 16) as u16] }
    }

    /// Writes outputs of rows starting at `first`. See [`scalar::finish`].
    ///
    /// # Panics
    /// If rows or outputs are out of range.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(&self, sums: &[[__m512i; 2]], first: usize, rows: RowBlock, out: &mut OutputBlock) {
        let columns = self.columns;
        let (zeros, scales) = (&rows.zeros[first..first + sums.len()], &rows.scales[first..first + sums.len()]);
        assert_eq!(out.n_cols(), columns.n, "outputs of a panel");
        for (i, ((sums, &zero), &scale)) in sums.iter().zip(zeros).zip(scales).enumerate() {
            let (zero, scale, out) = (_mm512_set1_epi32(zero), _mm512_set1_ps(scale), out.row_start(first + i));
            for (j, sums) in sums.iter().enumerate() {
                // SAFETY: the arrays have 32 elements and `j` is 0 or 1; the mask covers existing columns only.
                unsafe {
                    let column_sums = _mm512_load_si512(columns.sums.as_ptr().add(16 * j).cast());
                    let sums = _mm512_sub_epi32(*sums, _mm512_mullo_epi32(zero, column_sums));
                    let values = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale);
                    let values = _mm512_mul_ps(values, _mm512_load_ps(columns.scales.as_ptr().add(16 * j)));
                    let values = _mm512_add_ps(values, _mm512_load_ps(columns.bias.as_ptr().add(16 * j)));
                    _mm512_mask_storeu_ps(out.wrapping_add(16 * j), self.mask[j], values);
                }
            }
        }
    }
}

/// Writes rows of 32 sums from AMX tiles.
#[target_feature(enable = "avx512f")]
pub(super) fn finish_rows(
    sums: &[[i32; PANEL]],
    first: usize,
    rows: RowBlock,
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let epilogue = PanelEpilogue::new(columns);
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: 16 of 32 elements, from 0 or 16 on.
        let sums = [0, 16].map(|at| unsafe { _mm512_loadu_si512(sums.as_ptr().add(at).cast()) });
        epilogue.store(&[sums], first + i, rows, out);
    }
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
/// If `SPARSE`, `masks` points to the masks of the next group and `codes` to its first value; otherwise `codes`
/// points to the next group. Memory `ahead` bytes after `codes` is prefetched.
struct PanelReader<const SPARSE: bool> {
    codes: *const i8,
    masks: *const u64,
    ahead: usize,
}

impl<const SPARSE: bool> PanelReader<SPARSE> {
    const fn new(weights: PanelView, ahead: usize) -> Self {
        match weights {
            PanelView::Dense(panel) => Self { codes: panel.as_ptr(), masks: std::ptr::null(), ahead },
            PanelView::Sparse(masks, values) => Self { codes: values.as_ptr(), masks: masks.as_ptr(), ahead },
        }
    }

    /// Returns the weights of the next group: 16 outputs, and 16 more.
    ///
    /// # Safety
    /// There is a next group; sparse values come from [`super::SparsePanels`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    unsafe fn next(&mut self) -> [__m512i; 2] {
        // SAFETY: a group has 128 bytes or 2 masks; 64 bytes are readable after the last value of a sparse
        // panel. A prefetch accepts any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.codes.wrapping_add(self.ahead));
            if SPARSE {
                let masks = [*self.masks, *self.masks.add(1)];
                let second = self.codes.add(masks[0].count_ones() as usize);
                let low = _mm512_maskz_expand_epi8(masks[0], _mm512_loadu_si512(self.codes.cast()));
                let high = _mm512_maskz_expand_epi8(masks[1], _mm512_loadu_si512(second.cast()));
                self.codes = second.add(masks[1].count_ones() as usize);
                self.masks = self.masks.add(2);
                [low, high]
            } else {
                _mm_prefetch::<_MM_HINT_T0>(self.codes.wrapping_add(self.ahead + 64));
                let weights = self.codes;
                self.codes = weights.add(4 * PANEL);
                [_mm512_loadu_si512(weights.cast()), _mm512_loadu_si512(weights.add(64).cast())]
            }
        }
    }
}

/// Multiplies `M` rows by one panel, `U` groups of 4 inputs at a time.
///
/// # Safety
/// Rows `first..first + M` exist, each at least as long as the panel is deep. `weights` is sparse if and only
/// if `SPARSE`; sparse weights are a panel of [`super::SparsePanels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
unsafe fn tile<const SPARSE: bool, const M: usize, const U: usize>(
    rows: RowBlock,
    first: usize,
    (weights, ahead): (PanelView, usize),
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    // SAFETY: guaranteed by the caller.
    let sums = unsafe { sums::<SPARSE, M, U>(rows, first, weights, ahead) };
    PanelEpilogue::new(columns).store(&sums, first, rows, out);
}

/// Returns the sums of [`tile`]. They stay in registers, because no index is computed at run time.
///
/// # Safety
/// See [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
unsafe fn sums<const SPARSE: bool, const M: usize, const U: usize>(
    rows: RowBlock,
    first: usize,
    weights: PanelView,
    ahead: usize,
) -> [[__m512i; 2]; M] {
    let mut codes = rows.codes[first * rows.stride..].as_ptr();
    let mut sums = [[[_mm512_setzero_si512(); 2]; M]; U];
    let (n_groups, mut reader) = (weights.n_groups(), PanelReader::<SPARSE>::new(weights, ahead));
    // SAFETY: one step per group, which has 4 codes in each row.
    unsafe {
        for _ in 0..n_groups / U {
            for sums in &mut sums {
                multiply_group::<M>(codes, rows.stride, reader.next(), sums);
                codes = codes.add(4);
            }
        }
        for _ in 0..n_groups % U {
            multiply_group::<M>(codes, rows.stride, reader.next(), &mut sums[0]);
            codes = codes.add(4);
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

/// # Safety
/// At `codes`, 4 codes are readable in each of `M` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply_group<const M: usize>(
    codes: *const u8,
    stride: usize,
    weights: [__m512i; 2],
    sums: &mut [[__m512i; 2]; M],
) {
    for (i, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller guarantees row `i`.
        let code = _mm512_set1_epi32(unsafe { codes.add(i * stride).cast::<i32>().read_unaligned() });
        sums[0] = _mm512_dpbusd_epi32(sums[0], code, weights[0]);
        sums[1] = _mm512_dpbusd_epi32(sums[1], code, weights[1]);
    }
}

/// Calls `tile` for `$m` rows, unrolled to give enough independent sums.
macro_rules! for_rows {
    ($sparse:ident, $m:expr, $args:tt, $($rows:literal * $unroll:literal)*) => {
        match $m {
            $($rows => tile::<$sparse, $rows, $unroll> $args,)*
            _ => unreachable!("more rows than a tile has"),
        }
    };
}

/// Multiplies all rows by a panel, in tiles. The second tile prefetches `next`, because its own panel is
/// already in the caches.
///
/// # Safety
/// See [`tile`], for all rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
unsafe fn multiply<const SPARSE: bool>(
    rows: RowBlock,
    (weights, next): (PanelView, usize),
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let n_tiles = rows.n_rows().div_ceil(MAX_ROWS);
    let mut first = 0;
    for i in 0..n_tiles {
        // Tiles of similar height: 15 rows are 8 and 7, not 14 and 1.
        let m = (rows.n_rows() - first).div_ceil(n_tiles - i);
        // SAFETY: rows `first..first + m` exist; the caller guarantees the rest.
        unsafe {
            let ahead = if i == 1 { next } else { AHEAD };
            for_rows!(SPARSE, m, (rows, first, (weights, ahead), columns, out), 1 * 4 2 * 4 3 * 2 4 * 2 5 * 2 6 * 2 7 * 2 8 * 1
                9 * 1 10 * 1 11 * 1 12 * 1 13 * 1 14 * 1);
        }
        first += m;
    }
}

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_panel(
    rows: RowBlock,
    panel: &[i8],
    next: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let after = if next.is_empty() { AHEAD } else { next.as_ptr().addr().wrapping_sub(panel.as_ptr().addr()) };
    // SAFETY: rows are as deep as the panel.
    unsafe { multiply::<false>(rows, (PanelView::Dense(panel), after), columns, out) }
}

/// See [`super::Kernel::multiply_sparse_panel`].
///
/// # Safety
/// The caller has checked the shapes; the panel comes from [`super::SparsePanels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi2,popcnt")]
pub(super) unsafe fn multiply_sparse_panel(
    rows: RowBlock,
    masks: &[u64],
    values: &[i8],
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    // SAFETY: rows are as deep as the panel.
    unsafe { multiply::<true>(rows, (PanelView::Sparse(masks, values), AHEAD), columns, out) }
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
