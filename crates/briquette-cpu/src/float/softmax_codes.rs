//! Attention weights as 8-bit codes.
#![allow(unsafe_code)]

use super::loops::{LANES, join_lanes, on_path, reduce};
use briquette_core::simd::Isa;
use briquette_core::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Adding 1.5 · 2^23 rounds to an integer, halves to even, in the low bits.
const ROUNDS: f32 = 12_582_912.0;
/// `255 * 2^f` for f within half of 0: Chebyshev interpolation, within 1e-4 of its value, a fortieth of a code.
const POWER: [f32; 4] = [254.980_76, 176.749_87, 61.873_066, 14.238_762];
/// Base 2 logarithms are clamped to this minimum, far below half a code.
const LOWEST: f32 = -60.0;
/// Rows that are computed together.
#[cfg(target_arch = "x86_64")]
const AT_ONCE: usize = 8;

/// Computes attention weights `codes[r][j] = round(255 · 2^(scores[r][j] - max))`, halves to even.
///
/// Rows of scores have the length of `factors`, a multiple of 16; rows of codes are `stride` apart. `sums`
/// receives `Σ 255 · 2^(scores[r][j] - max) · factors[j]` of each row, not rounded. Scores are base 2
/// logarithms. If all scores of a row are minus infinity or NaN, its codes and sum are 0.
///
/// # Panics
/// If 16 does not divide the length of a row, or `codes` has fewer rows than `sums`.
pub fn softmax_codes(
    level: SimdLevel,
    scores: &[f32],
    factors: &[f32],
    (codes, stride): (&mut [u8], usize),
    sums: &mut [f32],
) {
    let n = factors.len();
    assert!(n.is_multiple_of(LANES) && n <= stride && scores.len() == sums.len() * n, "rows of scores");
    assert!(codes.len() >= sums.len() * stride, "room for codes");
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level exists only if its instructions are available.
        Isa::Amx | Isa::Avx512Vnni => unsafe { rows_avx512(scores, factors, codes, stride, sums) },
        _ => on_path!(
            level,
            rows_plain(scores: &[f32], factors: &[f32], codes: &mut [u8], stride: usize, sums: &mut [f32])
        ),
    }
}

#[inline(always)]
fn rows_plain(scores: &[f32], factors: &[f32], codes: &mut [u8], stride: usize, sums: &mut [f32]) {
    let n = factors.len();
    for (row, sum) in sums.iter_mut().enumerate() {
        *sum = plain(&scores[row * n..][..n], factors, &mut codes[row * stride..][..n]);
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "iterator adapters are not inlined here")]
fn plain(scores: &[f32], factors: &[f32], codes: &mut [u8]) -> f32 {
    let larger = |a: f32, b: f32| if a < b { b } else { a };
    let max = reduce(scores, f32::NEG_INFINITY, larger, larger);
    if max == f32::NEG_INFINITY {
        codes.fill(0);
        return 0.0;
    }
    let mut sums = [0.0; LANES];
    let (scores, factors) = (scores.as_chunks::<LANES>().0, factors.as_chunks::<LANES>().0);
    for ((scores, factors), codes) in scores.iter().zip(factors).zip(codes.as_chunks_mut::<LANES>().0) {
        for i in 0..LANES {
            let score = scores[i] - max;
            let score = if score > LOWEST { score } else { LOWEST };
            let shifted = score + ROUNDS;
            let f = score - (shifted - ROUNDS);
            let power = POWER[3].mul_add(f, POWER[2]).mul_add(f, POWER[1]).mul_add(f, POWER[0]);
            let weight = f32::from_bits(power.to_bits().wrapping_add(shifted.to_bits() << 23));
            codes[i] = (weight + ROUNDS).to_bits() as u8;
            sums[i] = weight.mul_add(factors[i], sums[i]);
        }
    }
    join_lanes(sums, |a, b| a + b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
fn rows_avx512(scores: &[f32], factors: &[f32], codes: &mut [u8], stride: usize, sums: &mut [f32]) {
    let n = factors.len();
    let (together, rest) = sums.as_chunks_mut::<AT_ONCE>();
    let first = together.len() * AT_ONCE;
    for (index, sums) in together.iter_mut().enumerate() {
        let row = index * AT_ONCE;
        // SAFETY: the slices have rows of `n` scores, a multiple of 16, and of as many codes.
        *sums = unsafe { avx512(&scores[row * n..][..AT_ONCE * n], factors, &mut codes[row * stride..], stride) };
    }
    for (index, sum) in rest.iter_mut().enumerate() {
        let row = first + index;
        // SAFETY: as above.
        [*sum] = unsafe { avx512(&scores[row * n..][..n], factors, &mut codes[row * stride..], stride) };
    }
}

/// # Safety
/// `scores` has `M` rows of the length of `factors`, a multiple of 16. `codes` has as many rows of this length,
/// `stride` apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
#[inline]
unsafe fn avx512<const M: usize>(scores: &[f32], factors: &[f32], codes: &mut [u8], stride: usize) -> [f32; M] {
    let n = factors.len();
    // SAFETY: 16 divides the length; the same holds below.
    let load = |row: usize, at: usize| unsafe { _mm512_loadu_ps(scores.as_ptr().add(row * n + at)) };
    let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); M];
    for at in (0..n).step_by(LANES) {
        for (row, max) in max.iter_mut().enumerate() {
            // The instruction returns the second operand if either is NaN.
            *max = _mm512_max_ps(load(row, at), *max);
        }
    }
    // If all scores are minus infinity, subtracting `f32::MIN` gives weights of 0.
    let largest = max.map(|max| _mm512_reduce_max_ps(max));
    let max = largest.map(|max| _mm512_set1_ps(max.max(f32::MIN)));
    let [p0, p1, p2, p3] = POWER.map(|factor| _mm512_set1_ps(factor));
    let lowest = _mm512_set1_ps(LOWEST);
    let mut sums = [_mm512_setzero_ps(); M];
    for at in (0..n).step_by(LANES) {
        // SAFETY: each score has a factor.
        let factors = unsafe { _mm512_loadu_ps(factors.as_ptr().add(at)) };
        for row in 0..M {
            let score = _mm512_max_ps(_mm512_sub_ps(load(row, at), max[row]), lowest);
            let whole = _mm512_roundscale_ps::<8>(score);
            let f = _mm512_sub_ps(score, whole);
            let power = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_fmadd_ps(p3, f, p2), f, p1), f, p0);
            let weight = _mm512_scalef_ps(power, whole);
            sums[row] = _mm512_fmadd_ps(weight, factors, sums[row]);
            // SAFETY: each score has a code.
            unsafe {
                let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(weight));
                _mm_storeu_si128(codes.as_mut_ptr().add(row * stride + at).cast(), bytes);
            }
        }
    }
    std::array::from_fn(|row| {
        let mut lanes = [0.0; LANES];
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sums[row]) };
        if largest[row] == f32::NEG_INFINITY { 0.0 } else { join_lanes(lanes, |a, b| a + b) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns scores of `n` keys for some queries, with masked lanes at the end.
    fn scores(n_rows: usize, n: usize) -> Vec<f32> {
        let lanes = n.next_multiple_of(LANES);
        let score = |i: usize| if i % lanes < n { (i * 7919 % 1999) as f32 / 90.0 - 12.0 } else { f32::NEG_INFINITY };
        (0..n_rows * lanes).map(score).collect()
    }

    #[test]
    fn every_path_is_near_the_exact_weights_and_gives_the_same_bits() {
        for n in [1, 15, 16, 17, 100] {
            let (scores, lanes) = (scores(11, n), n.next_multiple_of(LANES));
            let factors: Vec<f32> = (0..lanes).map(|j| 1.0 + (j % 5) as f32).collect();
            let mut first = None;
            for level in SimdLevel::available().into_iter().rev() {
                let (mut codes, mut sums) = (vec![7; 11 * (lanes + 5)], [0.0; 11]);
                softmax_codes(level, &scores, &factors, (&mut codes, lanes + 5), &mut sums);
                for (row, scores) in scores.chunks(lanes).enumerate() {
                    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weights: Vec<f64> = scores.iter().map(|score| 255.0 * f64::from(score - max).exp2()).collect();
                    let sum: f64 =
                        weights.iter().zip(&factors).map(|(weight, factor)| weight * f64::from(*factor)).sum();
                    assert!((f64::from(sums[row]) / sum - 1.0).abs() < 2e-4, "{level} {n}");
                    for (code, weight) in codes[row * (lanes + 5)..][..lanes].iter().zip(weights) {
                        assert!((f64::from(*code) - weight).abs() < 0.53, "{level} {n}: {code} {weight}");
                    }
                }
                let found = (codes, sums);
                assert_eq!(first.get_or_insert(found.clone()), &found, "{level} {n}");
            }
        }
    }

    #[test]
    fn fully_masked_rows_have_zero_weights() {
        for level in SimdLevel::available() {
            let (mut all, mut nothing) = ([9; 9 * 16], [9.0; 9]);
            softmax_codes(level, &[f32::NEG_INFINITY; 9 * 16], &[1.0; 16], (&mut all, 16), &mut nothing);
            assert_eq!((all, nothing), ([0; 9 * 16], [0.0; 9]), "{level}");
            let (mut codes, mut sums) = ([9; 16], [9.0]);
            let mut scores = [f32::NAN; 16];
            softmax_codes(level, &scores, &[1.0; 16], (&mut codes, 16), &mut sums);
            assert_eq!((codes, sums), ([0; 16], [0.0]), "{level}");
            scores[3] = 1.0;
            softmax_codes(level, &scores, &[1.0; 16], (&mut codes, 16), &mut sums);
            assert_eq!((codes[3], codes[4]), (255, 0), "{level}");
        }
    }
}
