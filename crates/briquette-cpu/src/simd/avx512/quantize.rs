//! Quantization of activations with AVX-512.
#![allow(unsafe_code)]

use crate::activations::ActivationGrid;
use crate::simd::column_quantizers::{ColumnQuantizers, ColumnRanges};
use crate::simd::row_quantizer::{RowQuantizer, ValueRange};
use crate::simd::scalar;
use std::arch::x86_64::*;

/// Loads up to 16 floats of `x` starting at `at`, with zeros beyond the end.
#[target_feature(enable = "avx512f")]
fn load_floats(x: &[f32], at: usize) -> __m512 {
    if let Some(values) = x.get(at..at + 16) {
        // SAFETY: 16 readable floats.
        return unsafe { _mm512_loadu_ps(values.as_ptr()) };
    }
    let mask = (1_u16 << x.len().saturating_sub(at)) - 1;
    // SAFETY: only lanes inside `x` are read.
    unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr().wrapping_add(at)) }
}

#[target_feature(enable = "avx512f")]
fn magnitude(x: &[f32]) -> u32 {
    let mut largest = [_mm512_setzero_si512(); 4];
    for at in (0..x.len()).step_by(64) {
        for (i, largest) in largest.iter_mut().enumerate() {
            let bits =
                _mm512_and_si512(_mm512_castps_si512(load_floats(x, at + 16 * i)), _mm512_set1_epi32(0x7fff_ffff));
            *largest = _mm512_max_epu32(*largest, bits);
        }
    }
    let [a, b, c, d] = largest;
    _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d)))
}

/// See [`scalar::value_range`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::simd) fn value_range(x: &[f32], grid: ActivationGrid) -> ValueRange {
    if grid != ActivationGrid::Asymmetric {
        return ValueRange { magnitude: magnitude(x), ..ValueRange::default() };
    }
    // All in one pass, because the input of a convolution is larger than the caches.
    let (mut min, mut max) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
    // Sums of `x * 0`: zero if all values are finite, NaN otherwise.
    let (mut nothing, zero) = ([_mm512_setzero_ps(); 2], _mm512_setzero_ps());
    for at in (0..x.len()).step_by(32) {
        for i in 0..2 {
            let values = load_floats(x, at + 16 * i);
            min[i] = _mm512_min_ps(min[i], values);
            max[i] = _mm512_max_ps(max[i], values);
            nothing[i] = _mm512_fmadd_ps(values, zero, nothing[i]);
        }
    }
    let min = _mm512_reduce_min_ps(_mm512_min_ps(min[0], min[1]));
    let max = _mm512_reduce_max_ps(_mm512_max_ps(max[0], max[1]));
    let nothing = _mm512_add_ps(nothing[0], nothing[1]);
    let is_finite = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(nothing, nothing) == 0;
    let magnitude = if is_finite { max.max(-min).to_bits() } else { magnitude(x) };
    ValueRange { min, max, magnitude }
}

/// See [`scalar::quantize`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::simd) fn quantize(x: &[f32], row: RowQuantizer, codes: &mut [u8]) {
    if !row.inverse.is_finite() {
        return scalar::quantize(x, row, codes);
    }
    let (inverse, zero) = (_mm512_set1_ps(row.inverse), _mm512_set1_epi16(row.zero as i16));
    let most = _mm512_set1_ps(32767.0);
    // Packing works in lanes of 16 bytes; this permutation restores the order.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for at in (0..x.len()).step_by(64) {
        let mut steps = [_mm512_setzero_si512(); 4];
        for (i, steps) in steps.iter_mut().enumerate() {
            // Values above a fixed grid may exceed i32, whose conversion would give the lowest code.
            let in_steps = _mm512_mul_ps(load_floats(x, at + 16 * i), inverse);
            *steps = _mm512_cvtps_epi32(_mm512_min_ps(in_steps, most));
        }
        let low = _mm512_adds_epi16(_mm512_packs_epi32(steps[0], steps[1]), zero);
        let high = _mm512_adds_epi16(_mm512_packs_epi32(steps[2], steps[3]), zero);
        let packed = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
        let left = codes.len() - at;
        let mask = if left >= 64 { !0 } else { (1_u64 << left) - 1 };
        // SAFETY: only bytes inside `codes` are written, which has at least as many codes as `x` has floats.
        unsafe { _mm512_mask_storeu_epi8(codes.as_mut_ptr().add(at).cast(), mask, packed) };
    }
}

/// The plain loop of [`scalar`], compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::simd) fn add_to_ranges(row: &[f32], ranges: &mut ColumnRanges) {
    scalar::add_to_ranges(row, ranges);
}

/// The plain loop of [`scalar`], compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in crate::simd) fn quantize_columns(row: &[f32], columns: &ColumnQuantizers, codes: &mut [u8]) {
    scalar::quantize_columns(row, columns, codes);
}
