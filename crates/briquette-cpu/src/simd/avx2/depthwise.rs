//! Depthwise convolutions of codes to codes.

use super::finish::{packed, steps};
use super::{multiply_vnni, multiply_widened};
use crate::simd::tap_blocks::{CHANNELS, GROUP, TapBlock, TapBlocks, TapLine, TapRow, VECTORS, block_width};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of a register: half of a line.
const HALF: usize = 32;

/// Defines a module with `depthwise_row` for one kind of product.
macro_rules! depthwise_rows {
    ($module:ident, $features:literal, $product:ident) => {
        pub(in crate::simd) mod $module {
            use super::*;

            /// Computes the codes of up to [`SEGMENT`](crate::simd::tap_blocks::SEGMENT) neighbouring pixels
            /// `[pixel, channel]`. Sums and roundings are those of [`scalar::depthwise`](crate::simd::scalar::depthwise)
            /// and [`scalar::requantize`](crate::simd::scalar::requantize).
            #[target_feature(enable = $features)]
            pub(in crate::simd) fn depthwise_row(
                row: &TapRow,
                blocks: &TapBlocks,
                lines: &mut [TapLine],
                codes: &mut [u8],
            ) {
                for block in TapBlock::each(row, blocks) {
                    // The numbers of pixels are those that the weights were arranged for.
                    match block_width(block.n) {
                        16 => compute::<4>(&block, lines, codes),
                        32 => compute::<2>(&block, lines, codes),
                        _ => compute::<1>(&block, lines, codes),
                    }
                }
            }

            /// Computes the codes of a block. Each vector has `P` pixels.
            #[target_feature(enable = $features)]
            fn compute<const P: usize>(block: &TapBlock, lines: &mut [TapLine], codes: &mut [u8]) {
                let n_pixels = codes.len() / block.n_channels;
                let n_vectors = n_pixels.div_ceil(P);
                for columns in block.columns(P, n_vectors) {
                    interleave::<P>(block, columns, lines);
                }
                for first in (0..n_vectors).step_by(VECTORS) {
                    for half in 0..2 {
                        let found = multiply::<P>(block, first, half, lines);
                        for (at, found) in found.into_iter().enumerate().take(n_vectors - first) {
                            store::<P>(block, found, half, ((first + at) * P, n_pixels), codes);
                        }
                    }
                }
            }

            /// Returns the codes of one half of four vectors of outputs, of which some may be after the end.
            #[inline]
            #[target_feature(enable = $features)]
            fn multiply<const P: usize>(
                block: &TapBlock,
                first: usize,
                half: usize,
                lines: &[TapLine],
            ) -> [__m256i; VECTORS] {
                let (row, blocks) = (block.row, block.blocks);
                let (per_column, n_columns) = (blocks.weights.per_column(), blocks.weights.kernel[1]);
                let ((lines, between), codes) = (block.lines_of(P, first, lines), block.codes());
                let numbers = block.index * CHANNELS..(block.index + 1) * CHANNELS;
                let [factors, shifts] = [&blocks.factors[numbers.clone()], &blocks.shifts[numbers.clone()]];
                let zeros = &blocks.zeros[numbers];
                let mut all = [[_mm256_setzero_si256(); 4]; VECTORS];
                for r in 0..4 {
                    let at = 16 * r + 8 * half;
                    // SAFETY: there are 64 numbers, and the lines and weights of each tap.
                    unsafe {
                        let mut sums = [_mm256_loadu_si256(zeros.as_ptr().add(at).cast()); VECTORS];
                        let mut codes = codes.as_ptr().add(2 * HALF * r + HALF * half);
                        let mut column = lines.as_ptr();
                        for _ in 0..n_columns {
                            for group in (0..per_column).step_by(4) {
                                let weights = _mm256_loadu_si256(codes.cast());
                                codes = codes.wrapping_add(8 * HALF);
                                for (vector, sum) in sums.iter_mut().enumerate() {
                                    let line = column.add(vector * between + group + r).cast::<__m256i>().add(half);
                                    *sum = $product(*sum, _mm256_load_si256(line), weights);
                                }
                            }
                            column = column.wrapping_add(row.dilation * per_column);
                        }
                        let [factor, shift] =
                            [_mm256_loadu_ps(factors.as_ptr().add(at)), _mm256_loadu_ps(shifts.as_ptr().add(at))];
                        for (all, sum) in all.iter_mut().zip(sums) {
                            all[r] = steps(sum, factor, shift);
                        }
                    }
                }
                let mut found = [_mm256_setzero_si256(); VECTORS];
                for (found, all) in found.iter_mut().zip(all) {
                    *found = packed(all, blocks.bounds);
                }
                found
            }
        }
    };
}

depthwise_rows!(widened, "avx2", multiply_widened);
depthwise_rows!(vnni, "avx2,avxvnni", multiply_vnni);

/// Interleaves the taps of columns, counted from that of the first output; pixels of a vector are a stride apart.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave<const P: usize>(block: &TapBlock, columns: Range<usize>, lines: &mut [TapLine]) {
    let (per_column, rows) = (block.blocks.weights.per_column(), block.row.rows);
    let lines = &mut lines[columns.start * per_column..columns.end * per_column];
    for (group, rows) in rows.chunks(GROUP).enumerate() {
        // The weights of absent rows are 0.
        let row = |t: usize| rows.get(t).copied().unwrap_or(rows[0]);
        let rows = [row(0), row(1), row(2), row(3)];
        for (column, lines) in columns.clone().zip(lines.chunks_exact_mut(per_column)) {
            let pixels = block.pixels::<P>(block.row.first + column as isize);
            let lines = &mut lines[group * 4..][..4];
            for half in 0..2 {
                let (a, b) = (load::<P>(block, rows[0], pixels, half), load::<P>(block, rows[1], pixels, half));
                let (c, d) = (load::<P>(block, rows[2], pixels, half), load::<P>(block, rows[3], pixels, half));
                let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
                // SAFETY: a line has 64 bytes, aligned to 64.
                unsafe {
                    let line = lines.as_mut_ptr().cast::<__m256i>().add(half);
                    _mm256_store_si256(line, _mm256_unpacklo_epi16(ab, cd));
                    _mm256_store_si256(line.add(2), _mm256_unpackhi_epi16(ab, cd));
                    _mm256_store_si256(line.add(4), _mm256_unpacklo_epi16(ab_high, cd_high));
                    _mm256_store_si256(line.add(6), _mm256_unpackhi_epi16(ab_high, cd_high));
                }
            }
        }
    }
}

/// Loads one half of the block's codes of `P` pixels of a row. Codes of other channels may follow those of the block.
#[inline]
#[target_feature(enable = "avx2")]
fn load<const P: usize>(block: &TapBlock, row: &[u8], pixels: [Option<usize>; P], half: usize) -> __m256i {
    let codes = |index: usize| match pixels[index % P] {
        Some(pixel) => &row[pixel + block.first..],
        None => &block.row.padding[block.first..],
    };
    match P {
        1 => load_32(&codes(0)[HALF * half..]),
        2 => load_32(codes(half)),
        _ => _mm256_set_m128i(load_16(codes(2 * half + 1)), load_16(codes(2 * half))),
    }
}

/// Loads 32 codes; those after the end are 0.
#[inline]
#[target_feature(enable = "avx2")]
fn load_32(codes: &[u8]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(first_codes(codes, &mut [0; 32]).as_ptr().cast()) }
}

/// Loads 16 codes; those after the end are 0.
#[inline]
#[target_feature(enable = "avx2")]
fn load_16(codes: &[u8]) -> __m128i {
    // SAFETY: 16 bytes.
    unsafe { _mm_loadu_si128(first_codes(codes, &mut [0; 16]).as_ptr().cast()) }
}

/// Returns the first `N` codes. If there are fewer, they are copied to `room`, which has zeros.
#[inline(always)]
fn first_codes<'a, const N: usize>(codes: &'a [u8], room: &'a mut [u8; N]) -> &'a [u8; N] {
    match codes.first_chunk() {
        Some(codes) => codes,
        None => {
            room[..codes.len()].copy_from_slice(codes);
            room
        }
    }
}

/// Writes one half of the codes of `P` pixels, without those after the end.
#[inline]
#[target_feature(enable = "avx2")]
fn store<const P: usize>(
    block: &TapBlock,
    found: __m256i,
    half: usize,
    (pixel, n_pixels): (usize, usize),
    codes: &mut [u8],
) {
    let mut all = [0_u8; HALF];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), found) };
    // Pixels of this half, and the channels of each.
    let (n, width) = if P < 4 { (1, HALF) } else { (2, HALF / 2) };
    for (index, all) in all.chunks_exact(width).enumerate().take(n) {
        let (pixel, first) = match P {
            1 => (pixel, HALF * half),
            _ => (pixel + n * half + index, 0),
        };
        if pixel >= n_pixels {
            return;
        }
        let to = &mut codes[pixel * block.n_channels + block.first..][..block.n];
        let to = &mut to[first..];
        match to.first_chunk_mut::<HALF>() {
            Some(to) if width == HALF => to.copy_from_slice(all),
            _ => {
                let n = to.len().min(width);
                to[..n].copy_from_slice(&all[..n]);
            }
        }
    }
}
