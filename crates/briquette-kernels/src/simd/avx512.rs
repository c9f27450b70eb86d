//! AVX-512 with VNNI.
#![allow(unsafe_code)]

use super::scalar::{self, RowScale};
use super::{Block, Columns, PANEL, RowBlock};
use crate::quantize_rows::ActivationGrid;
use std::arch::x86_64::*;

/// Rows that are multiplied at once: 28 sums, 2 vectors of weights and a code in 32 registers.
const MAX_ROWS: usize = 14;
/// How far ahead of their use weights are fetched, in bytes.
const AHEAD: usize = 2048;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
}

/// Loads up to 16 floats of `x` from `at` on, zeros beyond its end.
#[target_feature(enable = "avx512f")]
fn load_floats(x: &[f32], at: usize) -> __m512 {
    let left = x.len().saturating_sub(at);
    let mask = if left >= 16 { !0 } else { (1_u16 << left) - 1 };
    // SAFETY: only the lanes that lie in `x` are read.
    unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().wrapping_add(at)) }
}

#[target_feature(enable = "avx512f")]
fn magnitude(x: &[f32]) -> u32 {
    let mut largest = [_mm512_setzero_si512(); 4];
    for at in (0..x.len()).step_by(64) {
        for (i, largest) in largest.iter_mut().enumerate() {
            let bits = _mm512_and_si512(_mm512_castps_si512(load_floats(x, at + 16 * i)), _mm512_set1_epi32(0x7fff_ffff));
            *largest = _mm512_max_epu32(*largest, bits);
        }
    }
    let [a, b, c, d] = largest;
    _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d)))
}

#[target_feature(enable = "avx512f")]
fn min_max(x: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
    for at in (0..x.len()).step_by(32) {
        for i in 0..2 {
            let values = load_floats(x, at + 16 * i);
            min[i] = _mm512_min_ps(min[i], values);
            max[i] = _mm512_max_ps(max[i], values);
        }
    }
    (_mm512_reduce_min_ps(_mm512_min_ps(min[0], min[1])), _mm512_reduce_max_ps(_mm512_max_ps(max[0], max[1])))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn row_scale(x: &[f32], grid: ActivationGrid) -> RowScale {
    match grid {
        ActivationGrid::Symmetric => RowScale::symmetric(magnitude(x)),
        ActivationGrid::Asymmetric => {
            let (min, max) = min_max(x);
            RowScale::asymmetric(min, max, magnitude(x))
        }
    }
}

/// See [`scalar::quantize_row`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn quantize_row(x: &[f32], grid: ActivationGrid, codes: &mut [u8]) -> (f32, i32) {
    let row = row_scale(x, grid);
    if !row.inverse.is_finite() {
        return scalar::quantize_row(x, grid, codes);
    }
    let (inverse, zero) = (_mm512_set1_ps(row.inverse), _mm512_set1_epi16(row.zero as i16));
    // Packing works in lanes of 16 bytes; this puts its result in order.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for at in (0..x.len()).step_by(64) {
        let mut steps = [_mm512_setzero_si512(); 4];
        for (i, steps) in steps.iter_mut().enumerate() {
            *steps = _mm512_cvtps_epi32(_mm512_mul_ps(load_floats(x, at + 16 * i), inverse));
        }
        let low = _mm512_adds_epi16(_mm512_packs_epi32(steps[0], steps[1]), zero);
        let high = _mm512_adds_epi16(_mm512_packs_epi32(steps[2], steps[3]), zero);
        let packed = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
        let left = codes.len() - at;
        let mask = if left >= 64 { !0 } else { (1_u64 << left) - 1 };
        // SAFETY: only the bytes that lie in `codes` are written, of which there are no fewer than floats.
        unsafe { _mm512_mask_storeu_epi8(codes.as_mut_ptr().add(at).cast(), mask, packed) };
    }
    (row.scale, row.zero)
}

/// The columns of a panel in registers.
struct Epilogue<'a> {
    columns: &'a Columns,
    mask: [u16; 2],
}

impl<'a> Epilogue<'a> {
    fn new(columns: &'a Columns) -> Self {
        let bits = ((1_u64 << columns.n) - 1) as u32;
        Self { columns, mask: [bits as u16, (bits >> 16) as u16] }
    }

    /// Writes half `j` of a row of outputs. See [`scalar::finish`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(&self, sums: __m512i, j: usize, zero: i32, scale: f32, out: &mut [f32]) {
        let columns = self.columns;
        debug_assert_eq!(out.len(), columns.n);
        // SAFETY: the arrays have 32 elements and `j` is 0 or 1; the mask covers the `n = out.len()` columns there are.
        unsafe {
            let column_sums = _mm512_load_si512(columns.sums.as_ptr().add(16 * j).cast());
            let sums = _mm512_sub_epi32(sums, _mm512_mullo_epi32(_mm512_set1_epi32(zero), column_sums));
            let values = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(scale));
            let values = _mm512_mul_ps(values, _mm512_load_ps(columns.scales.as_ptr().add(16 * j)));
            let values = _mm512_add_ps(values, _mm512_load_ps(columns.bias.as_ptr().add(16 * j)));
            _mm512_mask_storeu_ps(out.as_mut_ptr().wrapping_add(16 * j), self.mask[j], values);
        }
    }
}

/// Writes rows of 32 sums, as a tile left them.
#[target_feature(enable = "avx512f")]
pub(super) fn finish_rows(sums: &[[i32; PANEL]], first: usize, rows: RowBlock, columns: &Columns, out: &mut Block) {
    let epilogue = Epilogue::new(columns);
    for (i, sums) in sums.iter().enumerate() {
        let row = first + i;
        let (zero, scale) = (rows.zeros[row], rows.scales[row]);
        let out = out.row(row);
        for j in 0..2 {
            // SAFETY: 16 of 32 elements, from 0 or 16 on.
            let sums = unsafe { _mm512_loadu_si512(sums.as_ptr().add(16 * j).cast()) };
            epilogue.store(sums, j, zero, scale, out);
        }
    }
}

/// `M` rows times one panel, `U` groups of 4 inputs at a time.
///
/// # Safety
/// `codes` is followed by `M` rows of `stride` bytes, each at least as long as the panel is deep; rows `first..first + M`
/// exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<const M: usize, const U: usize>(rows: RowBlock, first: usize, panel: &[i8], columns: &Columns, out: &mut Block) {
    let codes = rows.codes[first * rows.stride..].as_ptr();
    let mut sums = [[[_mm512_setzero_si512(); 2]; M]; U];
    let n_groups = panel.len() / (4 * PANEL);
    let whole = n_groups / U * U;
    for group in (0..whole).step_by(U) {
        for (u, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `group + u` is below the number of groups.
            unsafe { multiply_group::<M>(codes, rows.stride, panel, group + u, sums) };
        }
    }
    for group in whole..n_groups {
        // SAFETY: as above.
        unsafe { multiply_group::<M>(codes, rows.stride, panel, group, &mut sums[0]) };
    }
    let epilogue = Epilogue::new(columns);
    for i in 0..M {
        let out = out.row(first + i);
        for j in 0..2 {
            let sum = sums[1..].iter().fold(sums[0][i][j], |sum, more| _mm512_add_epi32(sum, more[i][j]));
            epilogue.store(sum, j, rows.zeros[first + i], rows.scales[first + i], out);
        }
    }
}

/// # Safety
/// As for [`tile`], and `group` is one of the panel's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply_group<const M: usize>(
    codes: *const u8,
    stride: usize,
    panel: &[i8],
    group: usize,
    sums: &mut [[__m512i; 2]; M],
) {
    // SAFETY: the panel has 128 bytes for each group, a row of codes 4; a prefetch may be of any address.
    unsafe {
        let weights = panel.as_ptr().add(group * 4 * PANEL);
        if M <= 8 {
            _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(AHEAD));
            _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(AHEAD + 64));
        }
        let (low, high) = (_mm512_loadu_si512(weights.cast()), _mm512_loadu_si512(weights.add(64).cast()));
        for (i, sums) in sums.iter_mut().enumerate() {
            let code = _mm512_set1_epi32(codes.add(i * stride + group * 4).cast::<i32>().read_unaligned());
            sums[0] = _mm512_dpbusd_epi32(sums[0], code, low);
            sums[1] = _mm512_dpbusd_epi32(sums[1], code, high);
        }
    }
}

/// Calls `tile` for `$m` rows.
macro_rules! for_rows {
    ($m:expr, $args:tt, $($rows:literal * $unroll:literal),*) => {
        match $m {
            $($rows => tile::<$rows, $unroll> $args,)*
            _ => unreachable!("more rows than a tile has"),
        }
    };
}

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::multiply_panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn multiply_panel(rows: RowBlock, panel: &[i8], _next: &[i8], columns: &Columns, out: &mut Block) {
    let n_tiles = rows.n_rows().div_ceil(MAX_ROWS);
    let mut first = 0;
    for i in 0..n_tiles {
        // Tiles as even as they come: 15 rows are 8 and 7, not 14 and 1.
        let m = (rows.n_rows() - first).div_ceil(n_tiles - i);
        let args = (rows, first, panel, columns, &mut *out);
        // SAFETY: rows `first..first + m` exist, and are as deep as the panel.
        unsafe {
            let (rows, first, panel, columns, out) = args;
            for_rows!(m, (rows, first, panel, columns, out), 1 * 4, 2 * 4, 3 * 2, 4 * 2, 5 * 2, 6 * 2, 7 * 2, 8 * 1, 9 * 1,
                10 * 1, 11 * 1, 12 * 1, 13 * 1, 14 * 1);
        }
        first += m;
    }
}
