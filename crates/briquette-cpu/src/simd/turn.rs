//! Transposition of squares of floats and planes of bytes.
#![allow(unsafe_code)]

/// Floats along a side.
pub(crate) const SIDE: usize = 16;

/// Transposes a square: `to[c][r] = from[r * stride + c]`.
pub(super) fn turn(from: &[f32], stride: usize, to: &mut [[f32; SIDE]; SIDE]) {
    for (r, row) in from.chunks(stride).take(SIDE).enumerate() {
        for (to, value) in to.iter_mut().zip(row) {
            to[r] = *value;
        }
    }
}

/// See [`turn`].
///
/// # Safety
/// `from` has 16 rows of 16, `stride` apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn turn_avx512(from: &[f32], stride: usize, to: &mut [[f32; SIDE]; SIDE]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller guarantees row `r`.
    let rows: [__m512; SIDE] =
        std::array::from_fn(|r| unsafe { _mm512_loadu_ps(from.as_ptr().wrapping_add(r * stride)) });
    // First squares of 4 within each quarter of the registers, then the quarters.
    let pairs: [__m512; SIDE] = std::array::from_fn(|i| {
        let (a, b) = (rows[i / 4 * 4 + i % 2 * 2], rows[i / 4 * 4 + i % 2 * 2 + 1]);
        if i % 4 < 2 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) }
    });
    // Column `4 * quarter + c` of rows `4 * g..4 * g + 4` is quarter `quarter` of `fours[4 * g + c]`.
    let fours: [__m512; SIDE] = std::array::from_fn(|i| {
        let at = i / 4 * 4 + i % 4 / 2 * 2;
        let (a, b) = (_mm512_castps_pd(pairs[at]), _mm512_castps_pd(pairs[at + 1]));
        _mm512_castpd_ps(if i % 2 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) })
    });
    for c in 0..4 {
        let [a, b, d, e] = [0, 4, 8, 12].map(|g| fours[g + c]);
        let (low, high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (low_after, high_after) = (_mm512_shuffle_f32x4::<0x88>(d, e), _mm512_shuffle_f32x4::<0xdd>(d, e));
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(low, low_after),
            _mm512_shuffle_f32x4::<0x88>(high, high_after),
            _mm512_shuffle_f32x4::<0xdd>(low, low_after),
            _mm512_shuffle_f32x4::<0xdd>(high, high_after),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            // SAFETY: 16 floats.
            unsafe { _mm512_storeu_ps(to[4 * quarter + c].as_mut_ptr(), column) };
        }
    }
}

/// Transposes `[c][p]` to `[p][c]`.
pub(super) fn turn_bytes(planes: [&[u8; 64]; 8]) -> [[u8; 8]; 64] {
    let mut turned = [[0; 8]; 64];
    for (block, turned) in turned.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let rows = planes.map(|plane| u64::from_le_bytes(plane.as_chunks().0[block]));
        *turned = turn_words(rows).map(u64::to_le_bytes);
    }
    turned
}

/// Transposes 8 rows of 8 bytes.
fn turn_words(mut rows: [u64; 8]) -> [u64; 8] {
    for (distance, mask) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)] {
        for i in (0..8).filter(|i| i & distance == 0) {
            let swapped = (rows[i] >> (8 * distance) ^ rows[i + distance]) & mask;
            rows[i] ^= swapped << (8 * distance);
            rows[i + distance] ^= swapped;
        }
    }
    rows
}

/// See [`turn_bytes`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn turn_bytes_avx512(planes: [&[u8; 64]; 8]) -> [[u8; 8]; 64] {
    use std::arch::x86_64::*;
    // SAFETY: 64 bytes.
    let [a, b, c, d, e, f, g, h] = planes.map(|plane| unsafe { _mm512_loadu_si512(plane.as_ptr().cast()) });
    // Bytes of two planes, then of four, then of all; each time for the first and last pixels of every quarter.
    let by_2 = |a, b| [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)];
    let by_4 = |a, b| [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)];
    let by_8 = |a, b| [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
    let (ab, cd, ef, gh) = (by_2(a, b), by_2(c, d), by_2(e, f), by_2(g, h));
    let mut turned = [[0; 8]; 64];
    for half in 0..2 {
        let (first, last) = (by_4(ab[half], cd[half]), by_4(ef[half], gh[half]));
        for i in 0..2 {
            for (j, pairs) in by_8(first[i], last[i]).into_iter().enumerate() {
                // Two pixels of each quarter.
                let at = 8 * half + 4 * i + 2 * j;
                let quarters = [
                    _mm512_extracti32x4_epi32::<0>(pairs),
                    _mm512_extracti32x4_epi32::<1>(pairs),
                    _mm512_extracti32x4_epi32::<2>(pairs),
                    _mm512_extracti32x4_epi32::<3>(pairs),
                ];
                for (quarter, pair) in quarters.into_iter().enumerate() {
                    let to = &mut turned[16 * quarter + at..][..2];
                    // SAFETY: 2 times 8 bytes.
                    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), pair) };
                }
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimdLevel;
    use crate::simd::{turn_bytes, turn_square};

    #[test]
    fn every_path_transposes_squares() {
        for stride in [16, 17, 40] {
            let from: Vec<f32> = (0..16 * stride).map(|i| i as f32).collect();
            for level in SimdLevel::available() {
                let mut to = [[f32::NAN; SIDE]; SIDE];
                turn_square(level, &from, stride, &mut to);
                for (c, row) in to.iter().enumerate() {
                    for (r, &value) in row.iter().enumerate() {
                        assert_eq!(value, (r * stride + c) as f32, "{level} {stride}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_path_transposes_planes() {
        let planes: [[u8; 64]; 8] = std::array::from_fn(|c| std::array::from_fn(|p| (c * 31 + p * 3) as u8));
        for level in SimdLevel::available() {
            let turned = turn_bytes(level, planes.each_ref());
            for (p, codes) in turned.iter().enumerate() {
                assert_eq!(*codes, planes.map(|plane| plane[p]), "{level} {p}");
            }
        }
    }
}
