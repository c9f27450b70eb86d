//! The reference for 4-bit weights, which vectorises as it is, and its AVX-512 version.
#![allow(unsafe_code)]

use super::{Block, PANEL};
use crate::int4::Int4Panel;

/// `out[m, n] = Σ_g scales[g, n] * Σ_{i in g} x[m, i] * codes[i, n] + bias[n]`, with fused multiplications, in order.
#[inline(always)]
pub(super) fn multiply_panel(x: &[f32], panel: Int4Panel, bias: &[f32], out: &mut Block) {
    let n_in = panel.codes.len() / 16;
    for row in 0..out.n_rows() {
        let x = &x[row * n_in..(row + 1) * n_in];
        let mut total = [0.0_f32; PANEL];
        let groups = x.chunks(panel.group).zip(panel.codes.chunks(16 * panel.group));
        for ((x, codes), scales) in groups.zip(panel.scales.as_chunks::<PANEL>().0) {
            let mut sums = [0.0_f32; PANEL];
            for (&x, codes) in x.iter().zip(codes.as_chunks::<16>().0) {
                for j in 0..16 {
                    sums[j] = x.mul_add(f32::from((codes[j] & 15) as i8 - 8), sums[j]);
                    sums[j + 16] = x.mul_add(f32::from((codes[j] >> 4) as i8 - 8), sums[j + 16]);
                }
            }
            for j in 0..PANEL {
                total[j] = sums[j].mul_add(scales[j], total[j]);
            }
        }
        finish(&total, bias, out.row(row));
    }
}

#[inline(always)]
fn finish(total: &[f32; PANEL], bias: &[f32], out: &mut [f32]) {
    for (j, value) in out.iter_mut().enumerate() {
        *value = total[j] + bias.get(j).copied().unwrap_or(0.0);
    }
}

/// Whether the processor has what [`multiply_panel_fma`] is compiled for.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_fma() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// [`multiply_panel`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_panel_fma(x: &[f32], panel: Int4Panel, bias: &[f32], out: &mut Block) {
    multiply_panel(x, panel, bias, out);
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::multiply_panel as multiply_panel_avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Block, Int4Panel, PANEL, finish};
    use std::arch::x86_64::*;

    /// Rows at once: 12 sums, 12 totals, 2 vectors of weights.
    const MAX_ROWS: usize = 6;

    /// See [`super::multiply_panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    pub(in crate::simd) fn multiply_panel(x: &[f32], panel: Int4Panel, bias: &[f32], out: &mut Block) {
        let mut first = 0;
        while first < out.n_rows() {
            let n = MAX_ROWS.min(out.n_rows() - first);
            match n {
                1 => tile::<1>(x, first, panel, bias, out),
                2 => tile::<2>(x, first, panel, bias, out),
                3 => tile::<3>(x, first, panel, bias, out),
                4 => tile::<4>(x, first, panel, bias, out),
                5 => tile::<5>(x, first, panel, bias, out),
                _ => tile::<MAX_ROWS>(x, first, panel, bias, out),
            }
            first += n;
        }
    }

    /// Rows `first..first + M`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn tile<const M: usize>(x: &[f32], first: usize, panel: Int4Panel, bias: &[f32], out: &mut Block) {
        let n_in = panel.codes.len() / 16;
        let rows: [&[f32]; M] = std::array::from_fn(|i| &x[(first + i) * n_in..(first + i + 1) * n_in]);
        let mut totals = [[_mm512_setzero_ps(); 2]; M];
        for (g, scales) in panel.scales.as_chunks::<PANEL>().0.iter().enumerate() {
            let sums = group(&rows, g * panel.group..n_in.min((g + 1) * panel.group), panel.codes);
            for j in 0..2 {
                // SAFETY: 16 of 32 scales.
                let scales = unsafe { _mm512_loadu_ps(scales.as_ptr().add(16 * j)) };
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    total[j] = _mm512_fmadd_ps(sum[j], scales, total[j]);
                }
            }
        }
        for (i, total) in totals.iter().enumerate() {
            let mut values = [0.0; PANEL];
            // SAFETY: 2 times 16 floats.
            unsafe {
                _mm512_storeu_ps(values.as_mut_ptr(), total[0]);
                _mm512_storeu_ps(values.as_mut_ptr().add(16), total[1]);
            }
            finish(&values, bias, out.row(first + i));
        }
    }

    /// Unscaled sums over some inputs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn group<const M: usize>(rows: &[&[f32]; M], inputs: std::ops::Range<usize>, codes: &[u8]) -> [[__m512; 2]; M] {
        // Indexed by the low 4 bits of a lane.
        let values = _mm512_setr_ps(-8., -7., -6., -5., -4., -3., -2., -1., 0., 1., 2., 3., 4., 5., 6., 7.);
        let rows: [&[f32]; M] = std::array::from_fn(|i| &rows[i][inputs.clone()]);
        let codes = codes[16 * inputs.start..16 * inputs.end].as_chunks::<16>().0;
        let mut sums = [[_mm512_setzero_ps(); 2]; M];
        for (at, codes) in codes.iter().enumerate() {
            // SAFETY: 16 readable bytes; a prefetch may be of any address.
            let codes = unsafe {
                _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().wrapping_add(1024).cast());
                _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().cast()))
            };
            let low = _mm512_permutexvar_ps(codes, values);
            let high = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), values);
            for (sums, row) in sums.iter_mut().zip(&rows) {
                // SAFETY: rows are as long as there are inputs, 16 bytes of codes each.
                let x = _mm512_set1_ps(unsafe { *row.get_unchecked(at) });
                sums[0] = _mm512_fmadd_ps(x, low, sums[0]);
                sums[1] = _mm512_fmadd_ps(x, high, sums[1]);
            }
        }
        sums
    }
}
