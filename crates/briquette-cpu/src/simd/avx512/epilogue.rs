//! Turns the sums of a panel into outputs: floats, or codes.

use crate::simd::block::OutputBlock;
use crate::simd::operands::{PANEL, PanelColumns, RowBlock};
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

    /// Writes outputs of rows starting at `first`. See [`finish`](crate::simd::scalar::finish).
    ///
    /// # Panics
    /// If rows or outputs are out of range.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&self, sums: &[[__m512i; 2]], first: usize, rows: RowBlock, out: &mut OutputBlock) {
        let columns = self.columns;
        let (zeros, scales) = (&rows.zeros[first..first + sums.len()], &rows.scales[first..first + sums.len()]);
        assert_eq!(out.n_cols(), columns.n, "outputs of a panel");
        for (i, ((sums, &zero), &scale)) in sums.iter().zip(zeros).zip(scales).enumerate() {
            let (zero, scale, out) = (_mm512_set1_epi32(zero), _mm512_set1_ps(scale), out.row_start(first + i));
            for (j, sums) in sums.iter().enumerate() {
                // SAFETY: the arrays have 32 elements and `j` is 0 or 1; the mask covers existing columns only.
                unsafe {
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
        epilogue.store(&[sums], first + i, rows, out);
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

/// The epilogue of a panel whose outputs become codes.
pub(super) struct CodeEpilogue<'a> {
    columns: &'a PanelColumns,
    mask: [u16; 2],
    /// The input's zero point times the sums of weights.
    zeros: [__m512i; 2],
    factors: [__m512; 2],
    shifts: [__m512; 2],
    low: __m512,
    high: __m512,
}

impl<'a> CodeEpilogue<'a> {
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(columns: &'a PanelColumns, rounding: &CodeRounding) -> Self {
        let PanelEpilogue { mask, .. } = PanelEpilogue::new(columns);
        let zero = _mm512_set1_epi32(rounding.zero);
        // SAFETY: 16 of 32 elements, from 0 or 16 on.
        let sums = [0, 16].map(|at| unsafe { _mm512_load_si512(columns.sums.as_ptr().add(at).cast()) });
        Self {
            columns,
            mask,
            zeros: [_mm512_mullo_epi32(zero, sums[0]), _mm512_mullo_epi32(zero, sums[1])],
            factors: padded(rounding.factors),
            shifts: padded(rounding.shifts),
            low: _mm512_set1_ps(rounding.bounds[0]),
            high: _mm512_set1_ps(rounding.bounds[1]),
        }
    }

    /// Writes codes of rows starting at `first`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn store(&self, sums: &[[__m512i; 2]], first: usize, _rows: RowBlock, out: &mut RoundedRows) {
        let columns = self.columns;
        for (i, sums) in sums.iter().enumerate() {
            let codes = out.row(first + i, columns.n).as_mut_ptr();
            for (j, sums) in sums.iter().enumerate() {
                // SAFETY: the arrays have 32 elements and `j` is 0 or 1; the mask covers existing columns only.
                unsafe {
                    let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(*sums, self.zeros[j]));
                    let values = _mm512_mul_ps(sums, _mm512_load_ps(columns.scales.as_ptr().add(16 * j)));
                    let steps = _mm512_add_ps(_mm512_mul_ps(values, self.factors[j]), self.shifts[j]);
                    let rounded = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(steps, self.low), self.high));
                    _mm_mask_storeu_epi8(
                        codes.wrapping_add(16 * j).cast(),
                        self.mask[j],
                        _mm512_cvtepi32_epi8(rounded),
                    );
                }
            }
        }
    }
}
