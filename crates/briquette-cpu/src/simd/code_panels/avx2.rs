//! Transposition of squares of 8 words and of rows of 32 bytes with AVX2.
#![allow(unsafe_code)]

use crate::simd::operands::{PANEL, SIGNS};
use std::arch::x86_64::*;

/// See [`super::turn_rows`]; for 8 rows at a time.
///
/// # Safety
/// There are codes for `n` rows, rounded up to a multiple of 8. The depth of the panel is a multiple of 32.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn turn_rows(
    codes: &[u8],
    stride: usize,
    n: usize,
    groups: &mut [[u32; PANEL]],
    sums: &mut [i32; PANEL],
) {
    let depth = 4 * groups.len() as i32;
    for lane in (0..n).step_by(8) {
        let mut sum = _mm256_set1_epi32(-128 * depth);
        for (index, groups) in groups.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: the caller guarantees 8 rows of 32 codes here.
            let rows = std::array::from_fn(|i| unsafe {
                _mm256_loadu_si256(codes.as_ptr().add((lane + i) * stride + 32 * index).cast())
            });
            for (group, words) in groups.iter_mut().zip(turn_square(rows)) {
                let pairs = _mm256_maddubs_epi16(words, _mm256_set1_epi8(1));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                // SAFETY: lanes come in groups of 8, which divides the 32 of a group.
                unsafe { _mm256_storeu_si256(group.as_mut_ptr().add(lane).cast(), signed(words)) };
            }
        }
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(sums.as_mut_ptr().add(lane).cast(), sum) };
    }
}

/// Transposes 8 rows of 8 words.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_square(rows: [__m256i; 8]) -> [__m256i; 8] {
    let mut fours = rows;
    for half in [0, 4] {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| rows[half + i]);
        let [low, high] = [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
        let [low_after, high_after] = [_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d)];
        fours[half] = _mm256_unpacklo_epi64(low, low_after);
        fours[half + 1] = _mm256_unpackhi_epi64(low, low_after);
        fours[half + 2] = _mm256_unpacklo_epi64(high, high_after);
        fours[half + 3] = _mm256_unpackhi_epi64(high, high_after);
    }
    let mut turned = fours;
    for i in 0..4 {
        turned[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
        turned[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
    }
    turned
}

/// See [`super::weave_rows`].
///
/// # Safety
/// For each group there are 4 rows of 32 codes.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn weave_rows(codes: &[u8], stride: usize, groups: &mut [[u32; PANEL]]) {
    for (index, group) in groups.iter_mut().enumerate() {
        // SAFETY: the caller guarantees 32 codes.
        let row = |i: usize| unsafe { _mm256_loadu_si256(codes.as_ptr().add((4 * index + i) * stride).cast()) };
        let (ab, cd) = ([row(0), row(1)], [row(2), row(3)]);
        let by_2 = |[a, b]: [__m256i; 2]| [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
        let (ab, cd) = (by_2(ab), by_2(cd));
        // Four columns at a time from each half.
        let [first, second] = [_mm256_unpacklo_epi16(ab[0], cd[0]), _mm256_unpackhi_epi16(ab[0], cd[0])];
        let [third, fourth] = [_mm256_unpacklo_epi16(ab[1], cd[1]), _mm256_unpackhi_epi16(ab[1], cd[1])];
        let woven = [
            _mm256_permute2x128_si256::<0x20>(first, second),
            _mm256_permute2x128_si256::<0x20>(third, fourth),
            _mm256_permute2x128_si256::<0x31>(first, second),
            _mm256_permute2x128_si256::<0x31>(third, fourth),
        ];
        for (words, to) in woven.into_iter().zip(group.as_chunks_mut::<8>().0) {
            // SAFETY: 8 words.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), signed(words)) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn signed(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi32(SIGNS as i32))
}
