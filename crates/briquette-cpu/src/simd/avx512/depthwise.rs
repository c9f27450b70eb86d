//! Depthwise convolutions of codes to codes.

use crate::simd::tap_blocks::{CHANNELS, GROUP, TapBlocks};
use std::arch::x86_64::*;

/// Computes the codes of one pixel. `taps` has the input codes of each tap.
///
/// The sums and roundings are those of [`scalar::depthwise`](crate::simd::scalar::depthwise) and
/// [`scalar::requantize`](crate::simd::scalar::requantize).
///
/// # Safety
/// There is a tap for each weight of a channel, and each tap and `codes` have as many codes as there are channels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::simd) unsafe fn depthwise_to_codes(taps: &[&[u8]], blocks: &TapBlocks, codes: &mut [u8]) {
    let (n, n_groups) = (blocks.n_channels, blocks.n_taps.div_ceil(GROUP));
    let [low, high] = blocks.bounds.map(|bound| _mm512_set1_ps(bound));
    for (block, at) in (0..n).step_by(CHANNELS).enumerate() {
        let mask = u64::MAX >> (CHANNELS - (n - at).min(CHANNELS));
        let mut sums = [_mm512_setzero_si512(); 4];
        for group in 0..n_groups {
            // SAFETY: the caller guarantees channels `at..n` of each tap, and only those are read.
            let tap = |t: usize| match taps.get(group * GROUP + t) {
                Some(codes) => unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().add(at).cast()) },
                None => _mm512_setzero_si512(),
            };
            let [a, b, c, d] = [tap(0), tap(1), tap(2), tap(3)];
            let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
            let quads = [
                _mm512_unpacklo_epi16(ab, cd),
                _mm512_unpackhi_epi16(ab, cd),
                _mm512_unpacklo_epi16(ab_high, cd_high),
                _mm512_unpackhi_epi16(ab_high, cd_high),
            ];
            for (r, (sum, quad)) in sums.iter_mut().zip(quads).enumerate() {
                let first = ((block * n_groups + group) * 4 + r) * CHANNELS;
                // SAFETY: each group of a block has four vectors of 64 weights.
                let weights = unsafe { _mm512_loadu_si512(blocks.weights.as_ptr().add(first).cast()) };
                *sum = _mm512_dpbusd_epi32(*sum, quad, weights);
            }
        }
        let mut rounded = [_mm512_setzero_si512(); 4];
        for (r, (sum, rounded)) in sums.into_iter().zip(&mut rounded).enumerate() {
            let first = block * CHANNELS + 16 * r;
            // SAFETY: there are 64 numbers for each block.
            unsafe {
                let zeros = _mm512_loadu_si512(blocks.zeros.as_ptr().add(first).cast());
                let values = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, zeros));
                let values = _mm512_mul_ps(values, _mm512_loadu_ps(blocks.scales.as_ptr().add(first)));
                let steps = _mm512_mul_ps(values, _mm512_loadu_ps(blocks.factors.as_ptr().add(first)));
                let steps = _mm512_add_ps(steps, _mm512_loadu_ps(blocks.shifts.as_ptr().add(first)));
                *rounded = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(steps, low), high));
            }
        }
        let [r0, r1, r2, r3] = rounded;
        let bytes = _mm512_packus_epi16(_mm512_packus_epi32(r0, r1), _mm512_packus_epi32(r2, r3));
        // SAFETY: only codes `at..n` are written.
        unsafe { _mm512_mask_storeu_epi8(codes.as_mut_ptr().add(at).cast(), mask, bytes) };
    }
}
