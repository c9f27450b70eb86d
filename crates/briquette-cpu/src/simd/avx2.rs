//! AVX2, with or without VNNI.
//!
//! The usual instruction for products of bytes, `vpmaddubsw`, saturates its 16-bit sums, so it is not used.
//! Without VNNI, bytes are widened to 16 bits and `vpmaddwd` adds their products in 32 bits.
#![allow(unsafe_code)]

mod depthwise;
mod finish;

use super::block::OutputBlock;
use super::column_quantizers::{ColumnQuantizers, ColumnRanges};
use super::operands::{PANEL, PanelColumns, PatchRows, RowBlock};
use super::rounded_rows::{CodeRounding, RoundedRows};
use super::row_quantizer::{RowQuantizer, ValueRange};
use super::scalar;
use crate::activations::ActivationGrid;
pub(super) use depthwise::{vnni::depthwise_row as depthwise_row_vnni, widened::depthwise_row};
use finish::{CodeFinish, PanelFinish};
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

/// Defines a module whose `multiply` multiplies rows by panels.
macro_rules! products {
    ($module:ident, $features:literal, $product:ident, $rows:ident, $finish:ident, $out:ident) => {
        mod $module {
            use super::{MAX_ROWS, PANEL, $finish, $out, $product, $rows};
            use std::arch::x86_64::*;

            /// Multiplies all rows by a panel, in tiles of similar height.
            ///
            /// # Safety
            /// Rows are at least as long as the panel is deep, in whole groups of each run.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn multiply(rows: $rows, panel: &[i8], finish: &$finish, out: &mut $out) {
                let n_tiles = rows.len().div_ceil(MAX_ROWS);
                let mut first = 0;
                for i in 0..n_tiles {
                    let m = (rows.len() - first).div_ceil(n_tiles - i);
                    // SAFETY: rows `first..first + m` exist; the caller guarantees the rest.
                    unsafe {
                        match m {
                            1 => tile::<1, 4>(rows, first, panel, finish, out),
                            2 => tile::<2, 2>(rows, first, panel, finish, out),
                            3 => tile::<3, 2>(rows, first, panel, finish, out),
                            4 => tile::<4, 1>(rows, first, panel, finish, out),
                            5 => tile::<5, 1>(rows, first, panel, finish, out),
                            _ => tile::<MAX_ROWS, 1>(rows, first, panel, finish, out),
                        }
                    }
                    first += m;
                }
            }

            /// Multiplies `M` rows by a panel, one half of its outputs after the other.
            ///
            /// # Safety
            /// See [`multiply`], for rows `first..first + M`.
            #[target_feature(enable = $features)]
            unsafe fn tile<const M: usize, const U: usize>(
                rows: $rows,
                first: usize,
                panel: &[i8],
                finish: &$finish,
                out: &mut $out,
            ) {
                let codes = &rows.codes[first * rows.stride..];
                let mut sums = [[0_i32; PANEL]; M];
                for half in 0..finish.n().div_ceil(PANEL / 2) {
                    // SAFETY: the caller guarantees the rows.
                    let vectors = unsafe {
                        half_sums::<M, U>(codes, rows.stride, rows.runs(), panel.get(64 * half..).unwrap_or_default())
                    };
                    for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                        for (j, vector) in vectors.iter().enumerate() {
                            let at = &mut sums[16 * half + 8 * j..][..8];
                            // SAFETY: 8 writable numbers.
                            unsafe { _mm256_storeu_si256(at.as_mut_ptr().cast(), *vector) };
                        }
                    }
                }
                finish.store(&sums, first, rows, out);
            }

            /// Returns the sums of the 16 outputs whose weights are the first 64 bytes of each group.
            ///
            /// # Safety
            /// See [`tile`]. The first group has at least 64 bytes.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn half_sums<const M: usize, const U: usize>(
                codes: &[u8],
                stride: usize,
                [n_runs, between]: [usize; 2],
                panel: &[i8],
            ) -> [[__m256i; 2]; M] {
                let mut sums = [[[_mm256_setzero_si256(); 2]; M]; U];
                let n_groups = panel.len().div_ceil(4 * PANEL) / n_runs;
                let (mut codes, mut weights) = (codes.as_ptr(), panel.as_ptr());
                // SAFETY: one step for each group, which has 4 codes in each row.
                unsafe {
                    for _ in 0..n_runs {
                        for _ in 0..n_groups / U {
                            for sums in &mut sums {
                                multiply_group::<M>(codes, stride, weights, sums);
                                (codes, weights) = (codes.add(4), weights.wrapping_add(4 * PANEL));
                            }
                        }
                        for _ in 0..n_groups % U {
                            multiply_group::<M>(codes, stride, weights, &mut sums[0]);
                            (codes, weights) = (codes.add(4), weights.wrapping_add(4 * PANEL));
                        }
                        codes = codes.wrapping_add(between).wrapping_sub(4 * n_groups);
                    }
                }
                let mut all = sums[0];
                for more in &sums[1..] {
                    for (all, more) in all.iter_mut().zip(more) {
                        *all = [_mm256_add_epi32(all[0], more[0]), _mm256_add_epi32(all[1], more[1])];
                    }
                }
                all
            }

            /// Adds the products of one group of inputs.
            ///
            /// # Safety
            /// At `codes`, 4 codes are readable in each of `M` rows, and 64 weights at `weights`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn multiply_group<const M: usize>(
                codes: *const u8,
                stride: usize,
                weights: *const i8,
                sums: &mut [[__m256i; 2]; M],
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let weights = [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(PANEL).cast())];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let code = _mm256_set1_epi32(codes.add(i * stride).cast::<i32>().read_unaligned());
                        *sums = [$product(sums[0], code, weights[0]), $product(sums[1], code, weights[1])];
                    }
                }
            }
        }
    };
}

products!(widened, "avx2", multiply_widened, RowBlock, PanelFinish, OutputBlock);
products!(vnni, "avx2,avxvnni", multiply_vnni, RowBlock, PanelFinish, OutputBlock);
products!(widened_codes, "avx2", multiply_widened, PatchRows, CodeFinish, RoundedRows);
products!(vnni_codes, "avx2,avxvnni", multiply_vnni, PatchRows, CodeFinish, RoundedRows);

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::Kernel`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn multiply_panel(rows: RowBlock, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    // SAFETY: rows are as deep as the panel.
    unsafe { widened::multiply(rows, panel, &PanelFinish { columns }, out) }
}

/// See [`scalar::multiply_panel`].
///
/// # Safety
/// The caller has checked the shapes: see [`super::Kernel`].
#[target_feature(enable = "avx2,avxvnni")]
pub(super) unsafe fn multiply_panel_vnni(rows: RowBlock, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    // SAFETY: rows are as deep as the panel.
    unsafe { vnni::multiply(rows, panel, &PanelFinish { columns }, out) }
}

/// Multiplies patches by a panel, and rounds the outputs to codes.
///
/// # Safety
/// The patches have as many codes as the panel is deep.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn multiply_to_codes(
    rows: PatchRows,
    panel: &[i8],
    (columns, rounding): (&PanelColumns, &CodeRounding),
    out: &mut RoundedRows,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { widened_codes::multiply(rows, panel, &CodeFinish::new(columns, rounding), out) }
}

/// Like [`multiply_to_codes`], with VNNI.
///
/// # Safety
/// The patches have as many codes as the panel is deep.
#[target_feature(enable = "avx2,avxvnni")]
pub(super) unsafe fn multiply_to_codes_vnni(
    rows: PatchRows,
    panel: &[i8],
    (columns, rounding): (&PanelColumns, &CodeRounding),
    out: &mut RoundedRows,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { vnni_codes::multiply(rows, panel, &CodeFinish::new(columns, rounding), out) }
}
