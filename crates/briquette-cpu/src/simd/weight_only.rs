//! Products of rows of floats and a panel of 8-bit codes, which become floats in registers.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::operands::{PANEL, PanelColumns};
use crate::float_rows::FloatRows;

/// Computes `out[m, n] = Σ x[m, i] * panel[i, n] * scales[n] + bias[n]`.
///
/// Uses fused multiply-add, with inputs in order. The panel has the layout `[n_in / 4][32][4]`.
#[inline(always)]
pub(super) fn multiply_panel(rows: &FloatRows, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    for tile in rows.tiles() {
        for row in 0..tile.n_rows {
            let mut sums = [0.0_f32; PANEL];
            for (x, group) in tile.x.chunks(4 * tile.n_rows).zip(panel.as_chunks::<{ 4 * PANEL }>().0) {
                for (t, x) in x.chunks_exact(tile.n_rows).enumerate() {
                    for (sum, codes) in sums.iter_mut().zip(group.as_chunks::<4>().0) {
                        *sum = x[row].mul_add(f32::from(codes[t]), *sum);
                    }
                }
            }
            finish(&sums, columns, out.row(tile.first + row));
        }
    }
}

#[inline(always)]
fn finish(sums: &[f32; PANEL], columns: &PanelColumns, out: &mut [f32]) {
    for (n, value) in out.iter_mut().enumerate() {
        *value = sums[n] * columns.scales[n] + columns.bias[n];
    }
}

/// [`multiply_panel`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_panel_fma(rows: &FloatRows, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    multiply_panel(rows, panel, columns, out);
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::multiply_panel as multiply_panel_avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{FloatRows, OutputBlock, PANEL, PanelColumns, finish};
    use crate::float_rows::{FloatTile, TILE_ROWS};
    use crate::simd::float_panel::{add_products, store, sums, to_array, with_floats};
    use std::arch::x86_64::*;

    /// The prefetch distance of codes, in bytes.
    const AHEAD: usize = 4096;

    /// A panel: the codes of 4 inputs at a time, or the floats of one.
    #[derive(Clone, Copy)]
    enum Int8PanelView<'a> {
        Codes(&'a [[i8; 4 * PANEL]]),
        Floats(&'a [[f32; PANEL]]),
    }

    /// See [`super::multiply_panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    pub(in crate::simd) fn multiply_panel(
        rows: &FloatRows,
        panel: &[i8],
        columns: &PanelColumns,
        out: &mut OutputBlock,
    ) {
        let groups = panel.as_chunks::<{ 4 * PANEL }>().0;
        if rows.n_rows() <= TILE_ROWS {
            return multiply(rows, Int8PanelView::Codes(groups), columns, out);
        }
        with_floats(4 * groups.len(), |floats| {
            for (group, floats) in groups.iter().zip(floats.as_chunks_mut::<4>().0) {
                let codes = load(group);
                store_input::<24>(codes, &mut floats[0]);
                store_input::<16>(codes, &mut floats[1]);
                store_input::<8>(codes, &mut floats[2]);
                store_input::<0>(codes, &mut floats[3]);
            }
            multiply(rows, Int8PanelView::Floats(floats), columns, out);
        });
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn multiply(rows: &FloatRows, weights: Int8PanelView, columns: &PanelColumns, out: &mut OutputBlock) {
        for rows in rows.tiles() {
            macro_rules! for_rows {
                ($($n:literal)*) => {
                    match rows.n_rows {
                        $($n => tile::<$n>(&rows, weights, columns, out),)*
                        _ => unreachable!("more rows than a tile has"),
                    }
                };
            }
            for_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn tile<const M: usize>(rows: &FloatTile, weights: Int8PanelView, columns: &PanelColumns, out: &mut OutputBlock) {
        let inputs = rows.x.as_chunks::<M>().0;
        let sums = match weights {
            Int8PanelView::Codes(groups) => sums_of_codes(inputs, groups),
            Int8PanelView::Floats(floats) => sums(inputs, floats),
        };
        for (i, sums) in sums.into_iter().enumerate() {
            finish(&to_array(sums), columns, out.row(rows.first + i));
        }
    }

    /// Like [`sums`] for codes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn sums_of_codes<const M: usize>(inputs: &[[f32; M]], groups: &[[i8; 4 * PANEL]]) -> [[__m512; 2]; M] {
        let mut sums = [[_mm512_setzero_ps(); 2]; M];
        for (inputs, group) in inputs.chunks(4).zip(groups) {
            let codes = load(group);
            if let [a, b, c, d] = inputs {
                add_input::<M, 24>(a, codes, &mut sums);
                add_input::<M, 16>(b, codes, &mut sums);
                add_input::<M, 8>(c, codes, &mut sums);
                add_input::<M, 0>(d, codes, &mut sums);
                continue;
            }
            if let [a, ..] = inputs {
                add_input::<M, 24>(a, codes, &mut sums);
            }
            if let [_, b, ..] = inputs {
                add_input::<M, 16>(b, codes, &mut sums);
            }
            if let [_, _, c] = inputs {
                add_input::<M, 8>(c, codes, &mut sums);
            }
        }
        sums
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(group: &[i8; 4 * PANEL]) -> [__m512i; 2] {
        let codes = group.as_ptr();
        // SAFETY: 128 bytes; a prefetch accepts any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD));
            _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD + 64));
            [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())]
        }
    }

    /// Returns the codes of an input, which end `SHIFT` bits below the top of each lane, as floats.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn widen<const SHIFT: u32>(codes: [__m512i; 2]) -> [__m512; 2] {
        codes.map(|codes| _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<SHIFT>(codes))))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store_input<const SHIFT: u32>(codes: [__m512i; 2], floats: &mut [f32; PANEL]) {
        let [low, high] = widen::<SHIFT>(codes);
        store(low, high, floats);
    }

    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    fn add_input<const M: usize, const SHIFT: u32>(x: &[f32; M], codes: [__m512i; 2], sums: &mut [[__m512; 2]; M]) {
        let [low, high] = widen::<SHIFT>(codes);
        add_products(x, low, high, sums);
    }
}
