//! AVX-512 with VNNI.
#![allow(unsafe_code)]

use super::scalar::{GroupedBlock, W4A8Panel, group_row};
use crate::group_layout::{GroupLayout, STEP_BYTES};
use crate::simd::block::OutputBlock;
use std::arch::x86_64::*;

/// Rows that are multiplied together: 14 sums, 14 totals, 2 vectors of weights and a code in 32 registers.
const MAX_ROWS: usize = 7;
/// The prefetch distance of weights, in bytes.
const AHEAD: usize = 4096;

/// [`group_row`] compiled for wider registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn group_codes(from: &[u8], layout: GroupLayout, to: &mut [u8], offsets: &mut [i32]) {
    group_row(from, layout, to, offsets);
}

/// See [`super::scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::multiply_w4a8_panel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
pub(super) unsafe fn multiply_panel(rows: GroupedBlock, panel: W4A8Panel, out: &mut OutputBlock) {
    let n_tiles = rows.n_rows().div_ceil(MAX_ROWS);
    let mut first = 0;
    for i in 0..n_tiles {
        // Tiles of similar height: 8 rows are 4 and 4, not 7 and 1.
        let m = (rows.n_rows() - first).div_ceil(n_tiles - i);
        macro_rules! for_rows {
            ($($n:literal)*) => {
                match m {
                    // SAFETY: rows `first..first + m` exist, as deep as the panel.
                    $($n => unsafe { tile::<$n>(rows, first, panel, out) },)*
                    _ => unreachable!("more rows than a tile has"),
                }
            };
        }
        for_rows!(1 2 3 4 5 6 7);
        first += m;
    }
}

/// Multiplies `M` rows by a panel.
///
/// # Safety
/// Rows `first..first + M` exist, each at least as long as the panel is deep, with an offset for each group.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
unsafe fn tile<const M: usize>(rows: GroupedBlock, first: usize, panel: W4A8Panel, out: &mut OutputBlock) {
    let mut codes = rows.codes[first * rows.stride..].as_ptr();
    let mut offsets = rows.offsets[first * rows.n_groups..].as_ptr();
    let mut totals = [[_mm512_setzero_ps(); 2]; M];
    // A prefetch accepts any address.
    _mm_prefetch::<_MM_HINT_T0>(panel.sums.as_ptr().cast());
    _mm_prefetch::<_MM_HINT_T0>(panel.sums.as_ptr().wrapping_add(16).cast());
    for (steps, scales) in panel.groups() {
        // SAFETY: the caller guarantees 4 codes for each step and an offset for each group in `M` rows.
        let sums = unsafe { sums_of_group::<M>(codes, rows.stride, offsets, rows.n_groups, steps) };
        (codes, offsets) = (codes.wrapping_add(4 * steps.len()), offsets.wrapping_add(1));
        for j in 0..2 {
            // SAFETY: 16 of 32 scales; a prefetch accepts any address.
            let scales = unsafe {
                let scales = scales.as_ptr().add(16 * j);
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(AHEAD / 4).cast());
                _mm512_loadu_ps(scales)
            };
            for (total, sum) in totals.iter_mut().zip(&sums) {
                total[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), scales, total[j]);
            }
        }
    }
    store(&totals, first, rows, panel, out);
}

/// Returns the sums of a group for `M` rows, which stay in registers.
///
/// # Safety
/// In each of `M` rows, `stride` bytes apart, 4 codes are readable for each step. `M` offsets, `n_groups` apart,
/// are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sums_of_group<const M: usize>(
    mut codes: *const u8,
    stride: usize,
    offsets: *const i32,
    n_groups: usize,
    steps: &[[u8; STEP_BYTES]],
) -> [[__m512i; 2]; M] {
    let low = _mm512_set1_epi8(15);
    // SAFETY: the caller guarantees `M` offsets.
    let mut sums: [[__m512i; 2]; M] =
        std::array::from_fn(|i| [_mm512_set1_epi32(unsafe { *offsets.add(i * n_groups) }); 2]);
    for step in steps {
        // SAFETY: 64 bytes of weights, and the caller guarantees 4 codes in each row; a prefetch accepts any
        // address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(step.as_ptr().wrapping_add(AHEAD).cast());
            let both = _mm512_loadu_si512(step.as_ptr().cast());
            let weights = [_mm512_and_si512(both, low), _mm512_and_si512(_mm512_srli_epi16::<4>(both), low)];
            for (i, sums) in sums.iter_mut().enumerate() {
                let code = _mm512_set1_epi32(codes.add(i * stride).cast::<i32>().read_unaligned());
                sums[0] = _mm512_dpbusd_epi32(sums[0], weights[0], code);
                sums[1] = _mm512_dpbusd_epi32(sums[1], weights[1], code);
            }
            codes = codes.add(4);
        }
    }
    sums
}

/// Writes the outputs of rows starting at `first`. See [`super::scalar::finish`].
#[inline]
#[target_feature(enable = "avx512f,fma")]
fn store(totals: &[[__m512; 2]], first: usize, rows: GroupedBlock, panel: W4A8Panel, out: &mut OutputBlock) {
    let n = out.n_cols();
    for j in 0..2 {
        let mask = ((1_u32 << n.saturating_sub(16 * j).min(16)) - 1) as u16;
        assert!(panel.bias.is_empty() || panel.bias.len() >= n, "a bias for each output");
        // SAFETY: 16 of 32 sums.
        let sums = unsafe { _mm512_loadu_ps(panel.sums[16 * j..][..16].as_ptr()) };
        let bias = match panel.bias.get(16 * j..) {
            // Even with an empty mask, a load from the address of an empty slice takes hundreds of cycles.
            None | Some([]) => _mm512_setzero_ps(),
            // SAFETY: only existing values are read.
            Some(bias) => unsafe { _mm512_maskz_loadu_ps(mask, bias.as_ptr()) },
        };
        for (i, total) in totals.iter().enumerate() {
            let (zero, scale) = (_mm512_set1_ps(rows.zeros[first + i]), _mm512_set1_ps(rows.scales[first + i]));
            let values = _mm512_fmadd_ps(_mm512_fnmadd_ps(zero, sums, total[j]), scale, bias);
            // SAFETY: the mask covers existing columns only.
            unsafe { _mm512_mask_storeu_ps(out.row_start(first + i).wrapping_add(16 * j), mask, values) };
        }
    }
}
