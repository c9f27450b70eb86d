//! Turns the sums of a panel into outputs: floats, or codes.

use crate::simd::block::OutputBlock;
use crate::simd::operands::{PANEL, PanelColumns, PatchRows, RowBlock};
use crate::simd::rounded_rows::{CodeRounding, RoundedRows};
use std::arch::x86_64::*;

/// The epilogue of a panel, with masks that limit stores to its outputs.
pub(super) struct PanelEpilogue<'a> {
    columns: &'a PanelColumns,
    mask: [u16; 2],
}

impl<'a> PanelEpilogue<'a> {
    pub(super) fn new(columns: &'a PanelColumns) -> Self {
        let bits = ((1_u64 << columns.n) - 1) as u32;
        Self { columns, mask: [bits as u16, (bits >> 16) as u16] }
    }

    /// Returns the initial sums of a row.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn start(&self) -> [__m512i; 2] {
        [_mm512_setzero_si512(); 2]
    }

    /// Writes outputs of rows starting at `first`. See [`finish`](crate::simd::scalar::finish). Always inlined, because sums are in
    /// registers.
    ///
    /// # Panics
    /// If rows or outputs are out of range.
    ///
    /// # Safety
    /// The caller has AVX-512 F.
    #[inline(always)]
    pub(super) unsafe fn store(&self, sums: &[[__m512i; 2]], first: usize, rows: RowBlock, out: &mut OutputBlock) {
        let columns = self.columns;
        let (zeros, scales) = (&rows.zeros[first..first + sums.len()], &rows.scales[first..first + sums.len()]);
        assert_eq!(out.n_cols(), columns.n, "outputs of a panel");
        for (i, ((sums, &zero), &scale)) in sums.iter().zip(zeros).zip(scales).enumerate() {
            let out = out.row_start(first + i);
            // SAFETY: the caller has the instructions. The arrays have 32 elements and `j` is 0 or 1; the mask covers existing columns only.
            unsafe {
                let (zero, scale) = (_mm512_set1_epi32(zero), _mm512_set1_ps(scale));
                for (j, sums) in sums.iter().enumerate() {
                    let column_sums = _mm512_load_si512(columns.sums.as_ptr().add(16 * j).cast());
                    let sums = _mm512_sub_epi32(*sums, _mm512_mullo_epi32(zero, column_sums));
                    let values = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale);
                    let values = _mm512_mul_ps(values, _mm512_load_ps(columns.scales.as_ptr().add(16 * j)));
                    let values = _mm512_add_ps(values, _mm512_load_ps(columns.bias.as_ptr().add(16 * j)));
                    _mm512_mask_storeu_ps(out.wrapping_add(16 * j), self.mask[j], values);
                }
            }
        }
    }
}

/// Writes rows of 32 sums from AMX tiles.
#[target_feature(enable = "avx512f")]
pub(in crate::simd) fn finish_rows(
    sums: &[[i32; PANEL]],
    first: usize,
    rows: RowBlock,
    columns: &PanelColumns,
    out: &mut OutputBlock,
) {
    let epilogue = PanelEpilogue::new(columns);
    for (i, sums) in sums.iter().enumerate() {
        // SAFETY: 16 of 32 elements, from 0 or 16 on.
        let sums = [0, 16].map(|at| unsafe { _mm512_loadu_si512(sums.as_ptr().add(at).cast()) });
        // SAFETY: this function has the instructions.
        unsafe { epilogue.store(&[sums], first + i, rows, out) };
    }
}

/// Loads up to 32 numbers; the others are 0.
#[target_feature(enable = "avx512f")]
fn padded(numbers: &[f32]) -> [__m512; 2] {
    let mut all = [0.0; PANEL];
    all[..numbers.len()].copy_from_slice(numbers);
    // SAFETY: 16 of 32 elements, from 0 or 16 on.
    [0, 16].map(|at| unsafe { _mm512_loadu_ps(all.as_ptr().add(at)) })
}

/// The lowest and the highest code.
#[derive(Clone, Copy)]
pub(super) struct ByteBounds {
    /// More than any code, and a number of 32 bits.
    most: __m512,
    low: __m512i,
    high: __m512i,
}

impl ByteBounds {
    #[target_feature(enable = "avx512f")]
    pub(super) fn new([low, high]: [u8; 2]) -> Self {
        let (low, high) = (_mm512_set1_epi8(low as i8), _mm512_set1_epi8(high as i8));
        Self { most: _mm512_set1_ps(1e9), low, high }
    }

    /// Returns `round(sums · factor + shift)`; NaN becomes the lowest integer.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn steps(self, sums: __m512i, factor: __m512, shift: __m512) -> __m512i {
        let steps = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), factor), shift);
        _mm512_cvtps_epi32(_mm512_min_ps(self.most, steps))
    }

    /// Packs numbers of 16 bits to codes, by lanes of 128 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn bytes(self, [low, high]: [__m512i; 2]) -> __m512i {
        _mm512_min_epu8(_mm512_max_epu8(_mm512_packus_epi16(low, high), self.low), self.high)
    }
}

/// The epilogue of a panel whose outputs become codes.
pub(super) struct CodeEpilogue {
    n: usize,
    mask: u32,
    /// Minus the input's zero point times the sums of weights.
    zeros: [__m512i; 2],
    factors: [__m512; 2],
    shifts: [__m512; 2],
    bounds: ByteBounds,
}

impl CodeEpilogue {
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(columns: &PanelColumns, rounding: &CodeRounding) -> Self {
        let zero = _mm512_set1_epi32(-rounding.zero);
        // SAFETY: 16 of 32 elements, from 0 or 16 on.
        let sums = [0, 16].map(|at| unsafe { _mm512_load_si512(columns.sums.as_ptr().add(at).cast()) });
        Self {
            n: columns.n,
            mask: u32::MAX >> (PANEL - columns.n),
            zeros: [_mm512_mullo_epi32(zero, sums[0]), _mm512_mullo_epi32(zero, sums[1])],
            factors: padded(rounding.factors),
            shifts: padded(rounding.shifts),
            bounds: ByteBounds::new(rounding.bounds.map(|bound| bound as u8)),
        }
    }

    /// Returns the initial sums of a row.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn start(&self) -> [__m512i; 2] {
        self.zeros
    }

    /// Writes codes of rows starting at `first`. Always inlined, because sums are in registers.
    ///
    /// # Panics
    /// If rows or outputs are out of range.
    ///
    /// # Safety
    /// The caller has AVX-512 F, BW and VL.
    #[inline(always)]
    pub(super) unsafe fn store<const M: usize>(
        &self,
        sums: &[[__m512i; 2]; M],
        first: usize,
        _rows: PatchRows,
        out: &mut RoundedRows,
    ) {
        let stride = out.stride;
        let codes = &mut out.codes[first * stride..][..(M - 1) * stride + self.n];
        let mut codes = codes.as_mut_ptr();
        // Written out, because sums leave the registers if the index is computed at run time.
        macro_rules! store_pairs {
            ($($row:literal)*) => {
                $(if $row < M {
                    let next = if $row + 1 < M { $row + 1 } else { $row };
                    // SAFETY: the rows were just sliced; the caller has the instructions.
                    unsafe { self.store_pair([&sums[$row % M], &sums[next % M]], $row + 1 < M, codes, stride) };
                    codes = codes.wrapping_add(2 * stride);
                })*
            };
        }
        store_pairs!(0 2 4 6 8 10 12);
        let _ = codes;
    }

    /// Writes the codes of a row, and of the next if there is one.
    ///
    /// # Safety
    /// `n` codes are writable at `to`, and after `stride`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store_pair(&self, sums: [&[__m512i; 2]; 2], has_next: bool, to: *mut u8, stride: usize) {
        // Packing leaves the codes of 4 outputs together: those of one row and of the next, by lanes of 128 bits.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let packed = self.bounds.bytes([self.rounded(sums[0]), self.rounded(sums[1])]);
        let packed = _mm512_permutexvar_epi32(order, packed);
        // SAFETY: guaranteed by the caller; the mask covers existing columns only.
        unsafe {
            self.store_row(_mm512_castsi512_si256(packed), to);
            if has_next {
                self.store_row(_mm512_extracti64x4_epi64::<1>(packed), to.add(stride));
            }
        }
    }

    /// # Safety
    /// `n` codes are writable at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn store_row(&self, codes: __m256i, to: *mut u8) {
        // SAFETY: guaranteed by the caller; the mask covers existing columns only.
        unsafe {
            match self.n {
                PANEL => _mm256_storeu_si256(to.cast(), codes),
                _ => _mm256_mask_storeu_epi8(to.cast(), self.mask, codes),
            }
        }
    }

    /// Rounds the sums of a row to numbers of 16 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn rounded(&self, sums: &[__m512i; 2]) -> __m512i {
        let low = self.bounds.steps(sums[0], self.factors[0], self.shifts[0]);
        let has_second = self.n > 16;
        let high = if has_second { self.bounds.steps(sums[1], self.factors[1], self.shifts[1]) } else { low };
        _mm512_packs_epi32(low, high)
    }
}
