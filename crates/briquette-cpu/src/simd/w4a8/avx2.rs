//! AVX2 with FMA.
//!
//! `vpmaddubsw` adds two products of bytes and saturates to 16 bits. A weight is at most 15 and an activation
//! code at least -128, so a pair has at most the magnitude `2 * 15 * 128 = 3840`. The sum of [`MAX_STEPS`] = 8
//! pairs is at most 30,720, below 32,767. Then `vpmaddwd` widens the sums to 32 bits.
#![allow(unsafe_code)]

use super::scalar::{GroupedBlock, W4A8Panel, finish, group_row};
use crate::group_layout::{GroupLayout, STEP_BYTES};
use crate::simd::block::OutputBlock;
use crate::simd::operands::PANEL;
use std::arch::x86_64::*;

/// Rows that are multiplied together: 8 sums, 2 vectors of weights, a code, a product and a mask in 16 registers.
const MAX_ROWS: usize = 4;
/// Steps whose products are added in 16 bits.
const MAX_STEPS: usize = 8;
const _: () = assert!(MAX_STEPS * 2 * 15 * 128 <= i16::MAX as usize);

/// [`group_row`] compiled for wider registers.
#[target_feature(enable = "avx2")]
pub(super) fn group_codes(from: &[u8], layout: GroupLayout, to: &mut [u8], offsets: &mut [i32]) {
    group_row(from, layout, to, offsets);
}

/// See [`super::scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::multiply_w4a8_panel`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply_panel(rows: GroupedBlock, panel: W4A8Panel, out: &mut OutputBlock) {
    let mut first = 0;
    while first < rows.n_rows() {
        let n = MAX_ROWS.min(rows.n_rows() - first);
        // SAFETY: rows `first..first + n` exist, as deep as the panel.
        unsafe {
            match n {
                1 => tile::<1>(rows, first, panel, out),
                2 => tile::<2>(rows, first, panel, out),
                3 => tile::<3>(rows, first, panel, out),
                _ => tile::<MAX_ROWS>(rows, first, panel, out),
            }
        }
        first += n;
    }
}

/// Multiplies `M` rows by a panel, one half of its lanes after the other.
///
/// # Safety
/// Rows `first..first + M` exist, each at least as long as the panel is deep, with an offset for each group.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const M: usize>(rows: GroupedBlock, first: usize, panel: W4A8Panel, out: &mut OutputBlock) {
    let mut all = [[0.0_f32; PANEL]; M];
    for half in 0..2 {
        let mut codes = rows.codes[first * rows.stride..].as_ptr();
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        for (g, (steps, scales)) in panel.groups().enumerate() {
            let offsets = std::array::from_fn(|i| rows.offsets[(first + i) * rows.n_groups + g]);
            // SAFETY: the caller guarantees 4 codes for each step in `M` rows.
            let sums = unsafe { sums_of_group::<M>(codes, rows.stride, offsets, steps, 32 * half) };
            codes = codes.wrapping_add(4 * steps.len());
            for j in 0..2 {
                // SAFETY: 8 of 32 scales.
                let scales = unsafe { _mm256_loadu_ps(scales[16 * j + 8 * half..][..8].as_ptr()) };
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    total[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j]), scales, total[j]);
                }
            }
        }
        for (all, totals) in all.iter_mut().zip(&totals) {
            for (j, total) in totals.iter().enumerate() {
                // SAFETY: 8 writable numbers.
                unsafe { _mm256_storeu_ps(all[16 * j + 8 * half..][..8].as_mut_ptr(), *total) };
            }
        }
    }
    for (i, totals) in all.iter().enumerate() {
        finish(totals, first + i, rows, panel, out);
    }
}

/// Returns the sums of a group for 8 outputs and the 8 outputs 16 later. Their weights start `at` bytes into
/// each step.
///
/// # Safety
/// In each of `M` rows, `stride` bytes apart, 4 codes are readable for each step; `at` is 0 or 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sums_of_group<const M: usize>(
    mut codes: *const u8,
    stride: usize,
    offsets: [i32; M],
    steps: &[[u8; STEP_BYTES]],
    at: usize,
) -> [[__m256i; 2]; M] {
    let (low, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut sums = offsets.map(|offset| [_mm256_set1_epi32(offset); 2]);
    for steps in steps.chunks(MAX_STEPS) {
        let mut shorts = [[_mm256_setzero_si256(); 2]; M];
        for step in steps {
            // SAFETY: 32 of 64 bytes of weights, and the caller guarantees 4 codes in each row.
            unsafe {
                let both = _mm256_loadu_si256(step.as_ptr().add(at).cast());
                let weights = [_mm256_and_si256(both, low), _mm256_and_si256(_mm256_srli_epi16::<4>(both), low)];
                for (i, shorts) in shorts.iter_mut().enumerate() {
                    let code = _mm256_set1_epi32(codes.add(i * stride).cast::<i32>().read_unaligned());
                    shorts[0] = _mm256_add_epi16(shorts[0], _mm256_maddubs_epi16(weights[0], code));
                    shorts[1] = _mm256_add_epi16(shorts[1], _mm256_maddubs_epi16(weights[1], code));
                }
                codes = codes.add(4);
            }
        }
        for (sums, shorts) in sums.iter_mut().zip(&shorts) {
            for (sum, shorts) in sums.iter_mut().zip(shorts) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*shorts, ones));
            }
        }
    }
    sums
}
