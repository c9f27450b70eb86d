//! Turns the sums of a panel into outputs: floats, or codes.

use crate::simd::block::OutputBlock;
use crate::simd::operands::{PANEL, PanelColumns, PatchRows, RowBlock};
use crate::simd::rounded_rows::{CodeRounding, RoundedRows};
use crate::simd::scalar;
use std::arch::x86_64::*;

/// Turns sums of a panel into floats.
pub(super) struct PanelFinish<'a> {
    pub(super) columns: &'a PanelColumns,
}

impl PanelFinish<'_> {
    /// Returns the number of outputs.
    pub(super) const fn n(&self) -> usize {
        self.columns.n
    }

    /// Writes outputs of rows starting at `first`. See [`scalar::finish`].
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn store(&self, sums: &[[i32; PANEL]], first: usize, rows: RowBlock, out: &mut OutputBlock) {
        for (i, sums) in sums.iter().enumerate() {
            let (zero, scale) = (rows.zeros[first + i], rows.scales[first + i]);
            for (n, value) in out.row(first + i).iter_mut().enumerate() {
                *value = scalar::finish(sums[n], zero, scale, self.columns, n);
            }
        }
    }
}

/// Turns sums of a panel into codes.
pub(super) struct CodeFinish {
    n: usize,
    /// Minus the input's zero point times the sums of weights.
    zeros: [i32; PANEL],
    factors: [f32; PANEL],
    shifts: [f32; PANEL],
    bounds: [u8; 2],
}

impl CodeFinish {
    pub(super) fn new(columns: &PanelColumns, rounding: &CodeRounding) -> Self {
        let padded = |numbers: &[f32]| {
            let mut all = [0.0; PANEL];
            all[..numbers.len()].copy_from_slice(numbers);
            all
        };
        Self {
            n: columns.n,
            zeros: columns.sums.map(|sum| sum.wrapping_mul(-rounding.zero)),
            factors: padded(rounding.factors),
            shifts: padded(rounding.shifts),
            bounds: rounding.bounds.map(|bound| bound as u8),
        }
    }

    /// Returns the number of outputs.
    pub(super) const fn n(&self) -> usize {
        self.n
    }

    /// Writes codes of rows starting at `first`.
    ///
    /// # Panics
    /// If rows or outputs are out of range.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn store(&self, sums: &[[i32; PANEL]], first: usize, _rows: PatchRows, out: &mut RoundedRows) {
        for (sums, row) in sums.iter().zip(first..) {
            let codes = &mut out.codes[row * out.stride..][..self.n];
            let found = self.codes(sums);
            let mut all = [0; PANEL];
            // SAFETY: both have 32 bytes.
            unsafe {
                match self.n {
                    PANEL => _mm256_storeu_si256(codes.as_mut_ptr().cast(), found),
                    n => {
                        _mm256_storeu_si256(all.as_mut_ptr().cast(), found);
                        codes.copy_from_slice(&all[..n]);
                    }
                }
            }
        }
    }

    /// Returns the codes of 32 outputs.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn codes(&self, sums: &[i32; PANEL]) -> __m256i {
        let words = [self.steps(sums, 0), self.steps(sums, 8), self.steps(sums, 16), self.steps(sums, 24)];
        // Packing works on halves of registers.
        _mm256_permutevar8x32_epi32(packed(words, self.bounds), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }

    /// Returns the steps of 8 outputs; see [`steps`].
    #[inline]
    #[target_feature(enable = "avx2")]
    fn steps(&self, sums: &[i32; PANEL], at: usize) -> __m256i {
        debug_assert!(at + 8 <= PANEL);
        // SAFETY: 8 of 32 numbers.
        unsafe {
            let sum = _mm256_loadu_si256(sums.as_ptr().add(at).cast());
            let sum = _mm256_add_epi32(sum, _mm256_loadu_si256(self.zeros.as_ptr().add(at).cast()));
            let (factor, shift) =
                (_mm256_loadu_ps(self.factors.as_ptr().add(at)), _mm256_loadu_ps(self.shifts.as_ptr().add(at)));
            steps(sum, factor, shift)
        }
    }
}

/// Returns `round(sum · factor + shift)`; NaN becomes the lowest integer.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn steps(sum: __m256i, factor: __m256, shift: __m256) -> __m256i {
    let steps = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor), shift);
    // More than any code, and a number of 32 bits. The second operand is the result for NaN.
    _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(1e9), steps))
}

/// Packs steps to codes within bounds, by lanes of 128 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn packed(steps: [__m256i; 4], [low, high]: [u8; 2]) -> __m256i {
    let [first, second] = [_mm256_packs_epi32(steps[0], steps[1]), _mm256_packs_epi32(steps[2], steps[3])];
    let codes = _mm256_packus_epi16(first, second);
    _mm256_min_epu8(_mm256_max_epu8(codes, _mm256_set1_epi8(low as i8)), _mm256_set1_epi8(high as i8))
}
