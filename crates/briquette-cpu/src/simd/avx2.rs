//! AVX2, with or without VNNI.
//!
//! The usual instruction for products of bytes, `vpmaddubsw`, saturates its 16-bit sums, so it is not used.
//! Without VNNI, bytes are widened to 16 bits and `vpmaddwd` adds their products in 32 bits.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::column_quantizers::{ColumnQuantizers, ColumnRanges};
use super::operands::{PANEL, PanelColumns, RowBlock};
use super::rounded_rows::CodeRounding;
use super::row_quantizer::{RowQuantizer, ValueRange};
use super::scalar;
use crate::activations::ActivationGrid;
use std::arch::x86_64::*;

/// Rows that are multiplied together: 12 sums, 2 vectors of weights and a code in 16 registers.
const MAX_ROWS: usize = 6;

/// Compiles plain loops for AVX2.
macro_rules! widened {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        $(/// The plain loop of [`scalar`], compiled for AVX2.
        #[target_feature(enable = "avx2")]
        pub(super) fn $name($($arg: $type),*) $(-> $out)? {
            scalar::$name($($arg),*)
        })*
    };
}

widened! {
    value_range(x: &[f32], grid: ActivationGrid) -> ValueRange;
    quantize(x: &[f32], row: RowQuantizer, codes: &mut [u8]);
    add_to_ranges(row: &[f32], ranges: &mut ColumnRanges);
    quantize_columns(row: &[f32], columns: &ColumnQuantizers, codes: &mut [u8]);
    depthwise(taps: &[&[u8]], weights: &[i32], sums: &mut [i32]);
    dot(codes: &[u8], weights: &[i8], zero: i32) -> i32;
    requantize(values: &[f32], rounding: &CodeRounding, codes: &mut [u8]);
}

/// Computes `sums[i] += Σ codes[4i + t] * weights[4i + t]` exactly, with unsigned codes and signed weights.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply_widened(sums: __m256i, codes: __m256i, weights: __m256i) -> __m256i {
    let even_codes = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
    let even_weights = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(weights));
    let even = _mm256_madd_epi16(even_codes, even_weights);
    let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), _mm256_srai_epi16::<8>(weights));
    _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
}

/// Like [`multiply_widened`], in one instruction.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn multiply_vnni(sums: __m256i, codes: __m256i, weights: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sums, codes, weights)
}

macro_rules! panel_by_rows {
    ($features:literal, $multiply_panel:ident, $tile:ident, $half:ident, $multiply:ident) => {
        /// See [`scalar::multiply_panel`].
        ///
        /// # Safety
        /// The caller has checked the shapes: see [`super::Kernel`].
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $multiply_panel(
            rows: RowBlock,
            panel: &[i8],
            columns: &PanelColumns,
            out: &mut OutputBlock,
        ) {
            let mut first = 0;
            while first < rows.n_rows() {
                let n = MAX_ROWS.min(rows.n_rows() - first);
                // SAFETY: rows `first..first + n` exist, as deep as the panel.
                unsafe {
                    match n {
                        1 => $tile::<1, 4>(rows, first, panel, columns, out),
                        2 => $tile::<2, 2>(rows, first, panel, columns, out),
                        3 => $tile::<3, 2>(rows, first, panel, columns, out),
                        4 => $tile::<4, 1>(rows, first, panel, columns, out),
                        5 => $tile::<5, 1>(rows, first, panel, columns, out),
                        _ => $tile::<MAX_ROWS, 1>(rows, first, panel, columns, out),
                    }
                }
                first += n;
            }
        }

        /// Multiplies `M` rows by a panel, one half of its outputs after the other.
        ///
        /// # Safety
        /// Rows `first..first + M` exist, each at least as long as the panel is deep.
        #[target_feature(enable = $features)]
        unsafe fn $tile<const M: usize, const U: usize>(
            rows: RowBlock,
            first: usize,
            panel: &[i8],
            columns: &PanelColumns,
            out: &mut OutputBlock,
        ) {
            let codes = &rows.codes[first * rows.stride..];
            let mut sums = [[0_i32; PANEL]; M];
            for half in 0..2 {
                // SAFETY: the caller guarantees the rows.
                let vectors = unsafe { $half::<M, U>(codes, rows.stride, panel, 64 * half) };
                for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                    for (j, vector) in vectors.iter().enumerate() {
                        let at = &mut sums[16 * half + 8 * j..][..8];
                        // SAFETY: 8 writable numbers.
                        unsafe { _mm256_storeu_si256(at.as_mut_ptr().cast(), *vector) };
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                let (zero, scale) = (rows.zeros[first + i], rows.scales[first + i]);
                for (n, value) in out.row(first + i).iter_mut().enumerate() {
                    *value = scalar::finish(sums[n], zero, scale, columns, n);
                }
            }
        }

        /// Returns the sums of 16 outputs, whose weights start `offset` bytes into each group.
        ///
        /// # Safety
        /// `codes` has `M` rows of `stride` bytes, each at least as long as the panel is deep; `offset` is 0 or
        /// 64.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $half<const M: usize, const U: usize>(
            codes: &[u8],
            stride: usize,
            panel: &[i8],
            offset: usize,
        ) -> [[__m256i; 2]; M] {
            let mut sums = [[[_mm256_setzero_si256(); 2]; M]; U];
            for (group, weights) in panel.as_chunks::<{ 4 * PANEL }>().0.iter().enumerate() {
                // SAFETY: 64 of the 128 bytes of a group, and 4 codes of each row.
                unsafe {
                    let weights = weights.as_ptr().add(offset);
                    let (low, high) = (_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(32).cast()));
                    for (i, sums) in sums[group % U].iter_mut().enumerate() {
                        let code = codes.as_ptr().add(i * stride + 4 * group).cast::<i32>().read_unaligned();
                        let code = _mm256_set1_epi32(code);
                        sums[0] = $multiply(sums[0], code, low);
                        sums[1] = $multiply(sums[1], code, high);
                    }
                }
            }
            let (first, more) = sums.split_first_mut().expect("U is not 0");
            for sums in more {
                for (total, sums) in first.iter_mut().zip(sums) {
                    total[0] = _mm256_add_epi32(total[0], sums[0]);
                    total[1] = _mm256_add_epi32(total[1], sums[1]);
                }
            }
            *first
        }
    };
}

panel_by_rows!("avx2", multiply_panel, tile, half, multiply_widened);
panel_by_rows!("avx2,avxvnni", multiply_panel_vnni, tile_vnni, half_vnni, multiply_vnni);
