//! The reference for 4-bit weights, which the compiler vectorises, and its AVX-512 version.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::operands::PANEL;
use crate::float_rows::FloatRows;

/// A panel of [`PackedInt4`](crate::PackedInt4).
#[derive(Clone, Copy)]
pub(crate) struct Int4Panel<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    pub(crate) group: usize,
}

/// Computes `out[m, n] = Σ_g scales[g, n] * Σ_{i in g} x[m, i] * codes[i, n] + bias[n]` with fused
/// multiply-add, in order.
#[inline(always)]
pub(super) fn multiply_panel(rows: &FloatRows, panel: Int4Panel, bias: &[f32], out: &mut OutputBlock) {
    for tile in rows.tiles() {
        for row in 0..tile.n_rows {
            let mut total = [0.0_f32; PANEL];
            let groups = tile.x.chunks(panel.group * tile.n_rows).zip(panel.codes.chunks(16 * panel.group));
            for ((x, codes), scales) in groups.zip(panel.scales.as_chunks::<PANEL>().0) {
                let mut sums = [0.0_f32; PANEL];
                for (x, codes) in x.chunks_exact(tile.n_rows).zip(codes.as_chunks::<16>().0) {
                    for j in 0..16 {
                        sums[j] = x[row].mul_add(f32::from((codes[j] & 15) as i8 - 8), sums[j]);
                        sums[j + 16] = x[row].mul_add(f32::from((codes[j] >> 4) as i8 - 8), sums[j + 16]);
                    }
                }
                for j in 0..PANEL {
                    total[j] = sums[j].mul_add(scales[j], total[j]);
                }
            }
            finish(&total, bias, out.row(tile.first + row));
        }
    }
}

#[inline(always)]
fn finish(total: &[f32; PANEL], bias: &[f32], out: &mut [f32]) {
    for (j, value) in out.iter_mut().enumerate() {
        *value = total[j] + bias.get(j).copied().unwrap_or(0.0);
    }
}

/// [`multiply_panel`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_panel_fma(rows: &FloatRows, panel: Int4Panel, bias: &[f32], out: &mut OutputBlock) {
    multiply_panel(rows, panel, bias, out);
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::multiply_panel as multiply_panel_avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{FloatRows, Int4Panel, OutputBlock, PANEL, finish};
    use crate::float_rows::{FloatTile, TILE_ROWS};
    use crate::simd::float_panel::{add_products, store, sums, to_array, with_floats};
    use std::arch::x86_64::*;

    /// Up to this many rows, two groups are summed in parallel.
    const MAX_ROWS_OF_TWO: usize = 2;
    /// Prefetch distances: bytes of codes, and groups of scales.
    const CODES_AHEAD: usize = 8192;
    const SCALES_AHEAD: usize = 16;

    /// A panel without its scales, by inputs.
    #[derive(Clone, Copy)]
    enum Int4PanelView<'a> {
        Codes(&'a [[u8; PANEL / 2]]),
        Floats(&'a [[f32; PANEL]]),
    }

    /// See [`super::multiply_panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    pub(in crate::simd) fn multiply_panel(rows: &FloatRows, panel: Int4Panel, bias: &[f32], out: &mut OutputBlock) {
        let codes = panel.codes.as_chunks().0;
        if rows.n_rows() <= TILE_ROWS {
            return multiply(rows, Int4PanelView::Codes(codes), panel, bias, out);
        }
        with_floats(codes.len(), |floats| {
            for (codes, floats) in codes.iter().zip(&mut *floats) {
                let [low, high] = widen(codes);
                store(low, high, floats);
            }
            multiply(rows, Int4PanelView::Floats(floats), panel, bias, out);
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn multiply(rows: &FloatRows, weights: Int4PanelView, panel: Int4Panel, bias: &[f32], out: &mut OutputBlock) {
        for rows in rows.tiles() {
            macro_rules! for_rows {
                ($($n:literal)*) => {
                    match rows.n_rows {
                        $($n => tile::<$n>(&rows, weights, panel, bias, out),)*
                        _ => unreachable!("more rows than a tile has"),
                    }
                };
            }
            for_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn tile<const M: usize>(
        rows: &FloatTile,
        weights: Int4PanelView,
        panel: Int4Panel,
        bias: &[f32],
        out: &mut OutputBlock,
    ) {
        let inputs = rows.x.as_chunks::<M>().0;
        let (mut totals, mut scales) = ([[_mm512_setzero_ps(); 2]; M], panel.scales.as_chunks::<PANEL>().0);
        let mut done = 0;
        if let (Int4PanelView::Codes(codes), true) = (weights, M <= MAX_ROWS_OF_TWO) {
            while let [first, second, rest @ ..] = scales
                && done + 2 * panel.group <= inputs.len()
            {
                let (middle, end) = (done + panel.group, done + 2 * panel.group);
                let [a, b] = sums_of_two(
                    [&inputs[done..middle], &inputs[middle..end]],
                    [&codes[done..middle], &codes[middle..end]],
                );
                add_scaled(&a, first, &mut totals);
                add_scaled(&b, second, &mut totals);
                (scales, done) = (rest, end);
            }
        }
        for scales in scales {
            let at = done..inputs.len().min(done + panel.group);
            done = at.end;
            let sums = match weights {
                Int4PanelView::Codes(codes) => sums_of_codes(&inputs[at.clone()], &codes[at]),
                Int4PanelView::Floats(floats) => sums(&inputs[at.clone()], &floats[at]),
            };
            add_scaled(&sums, scales, &mut totals);
        }
        for (i, total) in totals.into_iter().enumerate() {
            finish(&to_array(total), bias, out.row(rows.first + i));
        }
    }

    /// Adds the sums of a group times its scales.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    fn add_scaled<const M: usize>(sums: &[[__m512; 2]; M], scales: &[f32; PANEL], totals: &mut [[__m512; 2]; M]) {
        for j in 0..2 {
            // SAFETY: 16 of 32 scales; a prefetch accepts any address.
            let scales = unsafe {
                let scales = scales.as_ptr().add(16 * j);
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(SCALES_AHEAD * PANEL).cast());
                _mm512_loadu_ps(scales)
            };
            for (total, sum) in totals.iter_mut().zip(sums) {
                total[j] = _mm512_fmadd_ps(sum[j], scales, total[j]);
            }
        }
    }

    /// Like [`sums_of_codes`] for two groups in parallel, because with few rows each sum would wait for the
    /// previous one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn sums_of_two<const M: usize>(inputs: [&[[f32; M]]; 2], codes: [&[[u8; PANEL / 2]]; 2]) -> [[[__m512; 2]; M]; 2] {
        let mut sums = [[[_mm512_setzero_ps(); 2]; M]; 2];
        let [first, second] = [0, 1].map(|g| inputs[g].iter().zip(codes[g]));
        for pair in first.zip(second) {
            for (sums, (x, codes)) in sums.iter_mut().zip([pair.0, pair.1]) {
                let [low, high] = widen(codes);
                add_products(x, low, high, sums);
            }
        }
        sums
    }

    /// Like [`sums`] for codes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn sums_of_codes<const M: usize>(inputs: &[[f32; M]], codes: &[[u8; PANEL / 2]]) -> [[__m512; 2]; M] {
        let mut sums = [[_mm512_setzero_ps(); 2]; M];
        for (x, codes) in inputs.iter().zip(codes) {
            let [low, high] = widen(codes);
            add_products(x, low, high, &mut sums);
        }
        sums
    }

    /// Returns the codes of an input as floats.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn widen(codes: &[u8; PANEL / 2]) -> [__m512; 2] {
        // Indexed by the low 4 bits of a lane.
        let values = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
        // SAFETY: 16 readable bytes; a prefetch accepts any address.
        let codes = unsafe {
            _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().wrapping_add(CODES_AHEAD).cast());
            _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()))
        };
        [_mm512_permutexvar_ps(codes, values), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), values)]
    }
}
