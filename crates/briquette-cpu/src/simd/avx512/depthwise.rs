//! Depthwise convolutions of codes to codes.

use super::epilogue::ByteBounds;
use crate::simd::tap_blocks::{CHANNELS, GROUP, TapBlock, TapBlocks, TapLine, TapRow, VECTORS, block_width};
use std::arch::x86_64::*;
use std::ops::Range;

/// Computes the codes of up to [`SEGMENT`](crate::simd::tap_blocks::SEGMENT) neighbouring pixels `[pixel, channel]`.
///
/// The sums and roundings are those of [`scalar::depthwise`](crate::simd::scalar::depthwise) and
/// [`scalar::requantize`](crate::simd::scalar::requantize).
///
/// # Safety
/// Each input row has whole columns, and is one of as many as the kernel is high. `lines` come from [`TapRow::lines`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::simd) unsafe fn depthwise_row(row: &TapRow, blocks: &TapBlocks, lines: &mut [TapLine], codes: &mut [u8]) {
    for block in TapBlock::each(row, blocks) {
        // SAFETY: guaranteed by the caller; the numbers of pixels are those that the weights were arranged for.
        unsafe {
            match block_width(block.n) {
                16 => block.compute::<4>(lines, codes),
                32 => block.compute::<2>(lines, codes),
                _ => block.compute::<1>(lines, codes),
            }
        }
    }
}

impl TapBlock<'_> {
    /// Computes the codes of the block. Each vector has `P` pixels.
    ///
    /// # Safety
    /// See [`depthwise_row`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn compute<const P: usize>(&self, lines: &mut [TapLine], codes: &mut [u8]) {
        let n_pixels = codes.len() / self.n_channels;
        let n_vectors = n_pixels.div_ceil(P);
        // SAFETY: guaranteed by the caller.
        unsafe {
            for columns in self.columns(P, n_vectors) {
                self.interleave::<P>(columns, lines);
            }
            for first in (0..n_vectors).step_by(VECTORS) {
                let found = self.multiply::<P>(first, lines);
                for (at, found) in found.into_iter().enumerate().take(n_vectors - first) {
                    self.store::<P>(found, (first + at) * P, n_pixels, codes);
                }
            }
        }
    }

    /// Interleaves the taps of columns, counted from that of the first output; pixels of a vector are a stride apart.
    ///
    /// # Safety
    /// See [`depthwise_row`]; `lines` has room for the columns.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn interleave<const P: usize>(&self, columns: Range<usize>, lines: &mut [TapLine]) {
        let (per_column, rows) = (self.blocks.weights.per_column(), self.row.rows);
        let lines = &mut lines[columns.start * per_column..columns.end * per_column];
        for (group, rows) in rows.chunks(GROUP).enumerate() {
            // The weights of absent rows are 0.
            let row = |t: usize| rows.get(t).unwrap_or(&rows[0]).as_ptr();
            let rows = [row(0), row(1), row(2), row(3)];
            for (column, lines) in columns.clone().zip(lines.chunks_exact_mut(per_column)) {
                // SAFETY: guaranteed by the caller; each group has four lines of 64 bytes, aligned to 64.
                unsafe {
                    let pixels = self.pixels::<P>(self.row.first + column as isize);
                    let (a, b) = (self.load(rows[0], pixels), self.load(rows[1], pixels));
                    let (c, d) = (self.load(rows[2], pixels), self.load(rows[3], pixels));
                    let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
                    let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
                    let line = lines[group * 4..][..4].as_mut_ptr().cast::<__m512i>();
                    _mm512_store_si512(line, _mm512_unpacklo_epi16(ab, cd));
                    _mm512_store_si512(line.add(1), _mm512_unpackhi_epi16(ab, cd));
                    _mm512_store_si512(line.add(2), _mm512_unpacklo_epi16(ab_high, cd_high));
                    _mm512_store_si512(line.add(3), _mm512_unpackhi_epi16(ab_high, cd_high));
                }
            }
        }
    }

    /// Loads the block's codes of `P` pixels of a row.
    ///
    /// # Safety
    /// See [`depthwise_row`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load<const P: usize>(&self, row: *const u8, pixels: [Option<usize>; P]) -> __m512i {
        let mask = u64::MAX >> (CHANNELS - self.n);
        // SAFETY: pixels of the row, and the padding, have all channels; only those of the block are read.
        unsafe {
            let at = |index: usize| match pixels[index] {
                Some(pixel) => row.add(pixel + self.first),
                None => self.row.padding.as_ptr().add(self.first),
            };
            match P {
                1 => _mm512_maskz_loadu_epi8(mask, at(0).cast()),
                2 => {
                    let low = _mm256_maskz_loadu_epi8(mask as u32, at(0).cast());
                    let high = _mm256_maskz_loadu_epi8(mask as u32, at(1).cast());
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                }
                _ => {
                    let (a, b) = (
                        _mm_maskz_loadu_epi8(mask as u16, at(0).cast()),
                        _mm_maskz_loadu_epi8(mask as u16, at(1).cast()),
                    );
                    let (c, d) = (
                        _mm_maskz_loadu_epi8(mask as u16, at(2).cast()),
                        _mm_maskz_loadu_epi8(mask as u16, at(3).cast()),
                    );
                    let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
                    let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                }
            }
        }
    }

    /// Returns the codes of four vectors of outputs, of which some may be after the end.
    ///
    /// # Safety
    /// See [`depthwise_row`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn multiply<const P: usize>(&self, first: usize, lines: &[TapLine]) -> [__m512i; VECTORS] {
        let (row, weights) = (self.row, self.blocks.weights);
        let (per_column, n_columns) = (weights.per_column(), weights.kernel[1]);
        let ((lines, between), codes) = (self.lines_of(P, first, lines), self.codes());
        let mut sums = [[_mm512_setzero_si512(); 4]; VECTORS];
        let numbers = self.index * CHANNELS..(self.index + 1) * CHANNELS;
        let zeros = &self.blocks.zeros[numbers];
        // SAFETY: lengths were just checked or sliced.
        unsafe {
            for r in 0..4 {
                let zeros = _mm512_loadu_si512(zeros.as_ptr().add(16 * r).cast());
                for sums in &mut sums {
                    sums[r] = zeros;
                }
            }
            let (mut codes, mut column) = (codes.as_ptr(), lines.as_ptr());
            for _ in 0..n_columns {
                for group in (0..per_column).step_by(4) {
                    for r in 0..4 {
                        let weights = _mm512_loadu_si512(codes.cast());
                        codes = codes.add(64);
                        for (vector, sums) in sums.iter_mut().enumerate() {
                            let line = _mm512_load_si512(column.add(vector * between + group + r).cast());
                            sums[r] = _mm512_dpbusd_epi32(sums[r], line, weights);
                        }
                    }
                }
                column = column.add(row.dilation * per_column);
            }
        }
        // SAFETY: this function has the instructions.
        unsafe { self.rounded(sums) }
    }

    /// Rounds sums to codes `[pixel, channel]`. Always inlined, because sums are in registers.
    ///
    /// # Safety
    /// The caller has the instructions of [`Self::multiply`].
    #[inline(always)]
    unsafe fn rounded(&self, sums: [[__m512i; 4]; VECTORS]) -> [__m512i; VECTORS] {
        let numbers = self.index * CHANNELS..(self.index + 1) * CHANNELS;
        let (factors, shifts) = (&self.blocks.factors[numbers.clone()], &self.blocks.shifts[numbers]);
        let (mut steps, mut codes) = (sums, sums.map(|sums| sums[0]));
        // SAFETY: guaranteed by the caller; there are 64 numbers for each block.
        unsafe {
            let bounds = ByteBounds::new(self.blocks.bounds);
            for r in 0..4 {
                let factor = _mm512_loadu_ps(factors.as_ptr().add(16 * r));
                let shift = _mm512_loadu_ps(shifts.as_ptr().add(16 * r));
                for steps in &mut steps {
                    steps[r] = bounds.steps(steps[r], factor, shift);
                }
            }
            for (codes, [r0, r1, r2, r3]) in codes.iter_mut().zip(steps) {
                *codes = bounds.bytes([_mm512_packs_epi32(r0, r1), _mm512_packs_epi32(r2, r3)]);
            }
        }
        codes
    }

    /// Writes the codes of `P` pixels, without those after the end.
    ///
    /// # Safety
    /// `codes` has `n_pixels` pixels of all channels.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store<const P: usize>(&self, found: __m512i, pixel: usize, n_pixels: usize, codes: &mut [u8]) {
        let mask = u64::MAX >> (CHANNELS - self.n);
        let parts = [
            _mm512_castsi512_si128(found),
            _mm512_extracti32x4_epi32::<1>(found),
            _mm512_extracti32x4_epi32::<2>(found),
            _mm512_extracti32x4_epi32::<3>(found),
        ];
        for (index, part) in parts.into_iter().enumerate().take(P.min(n_pixels - pixel)) {
            let at = (pixel + index) * self.n_channels + self.first;
            // SAFETY: the pixel exists, and only its channels of this block are written.
            unsafe {
                let to = codes.as_mut_ptr().add(at);
                match (P, index) {
                    (1, _) => _mm512_mask_storeu_epi8(to.cast(), mask, found),
                    (2, 0) => _mm256_mask_storeu_epi8(to.cast(), mask as u32, _mm512_castsi512_si256(found)),
                    (2, _) => _mm256_mask_storeu_epi8(to.cast(), mask as u32, _mm512_extracti64x4_epi64::<1>(found)),
                    _ => _mm_mask_storeu_epi8(to.cast(), mask as u16, part),
                }
            }
        }
    }
}
