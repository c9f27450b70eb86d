//! Rows of floats times a panel of 8-bit codes, which become floats in registers.
#![allow(unsafe_code)]

use super::{Block, Columns, PANEL};

/// `out[m, n] = Σ x[m, i] * panel[i, n] * scales[n] + bias[n]`, with fused multiplications, inputs in order; the panel laid
/// out as `[n_in / 4][32][4]`.
#[inline(always)]
pub(super) fn multiply_panel(x: &[f32], n_in: usize, panel: &[i8], columns: &Columns, out: &mut Block) {
    for row in 0..out.n_rows() {
        let x = &x[row * n_in..(row + 1) * n_in];
        let mut sums = [0.0_f32; PANEL];
        for (x, group) in x.chunks(4).zip(panel.as_chunks::<{ 4 * PANEL }>().0) {
            for (t, &x) in x.iter().enumerate() {
                for (sum, codes) in sums.iter_mut().zip(group.as_chunks::<4>().0) {
                    *sum = x.mul_add(f32::from(codes[t]), *sum);
                }
            }
        }
        finish(&sums, columns, out.row(row));
    }
}

#[inline(always)]
fn finish(sums: &[f32; PANEL], columns: &Columns, out: &mut [f32]) {
    for (n, value) in out.iter_mut().enumerate() {
        *value = sums[n] * columns.scales[n] + columns.bias[n];
    }
}

/// [`multiply_panel`] compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_panel_fma(x: &[f32], n_in: usize, panel: &[i8], columns: &Columns, out: &mut Block) {
    multiply_panel(x, n_in, panel, columns, out);
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::multiply_panel as multiply_panel_avx512;

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Block, Columns, PANEL, finish};
    use std::arch::x86_64::*;

    /// Rows at once: 24 sums, 2 vectors of codes, 2 of weights.
    const MAX_ROWS: usize = 12;
    /// How far ahead of their use codes are fetched, in bytes.
    const AHEAD: usize = 4096;

    /// See [`super::multiply_panel`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    pub(in crate::simd) fn multiply_panel(x: &[f32], n_in: usize, panel: &[i8], columns: &Columns, out: &mut Block) {
        let n_tiles = out.n_rows().div_ceil(MAX_ROWS);
        let mut first = 0;
        for i in 0..n_tiles {
            let m = (out.n_rows() - first).div_ceil(n_tiles - i);
            let x = &x[first * n_in..(first + m) * n_in];
            macro_rules! for_rows {
                ($($rows:literal)*) => {
                    match m {
                        $($rows => tile::<$rows>(x, n_in, panel, columns, first, out),)*
                        _ => unreachable!("more rows than a tile has"),
                    }
                };
            }
            for_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
            first += m;
        }
    }

    /// `M` rows, written from row `first` on.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    fn tile<const M: usize>(x: &[f32], n_in: usize, panel: &[i8], columns: &Columns, first: usize, out: &mut Block) {
        let rows: [&[f32]; M] = std::array::from_fn(|i| &x[i * n_in..(i + 1) * n_in]);
        let mut sums = [[_mm512_setzero_ps(); 2]; M];
        let groups = panel.as_chunks::<{ 4 * PANEL }>().0;
        for (g, group) in groups.iter().enumerate() {
            let at = 4 * g;
            // SAFETY: a group has 128 bytes; a prefetch may be of any address.
            let codes = unsafe {
                let codes = group.as_ptr();
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD));
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD + 64));
                [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())]
            };
            // SAFETY: inputs `at..n_in` lie in every row.
            unsafe {
                add_input::<M, 24>(&rows, at, codes, &mut sums);
                if at + 4 <= n_in {
                    add_input::<M, 16>(&rows, at + 1, codes, &mut sums);
                    add_input::<M, 8>(&rows, at + 2, codes, &mut sums);
                    add_input::<M, 0>(&rows, at + 3, codes, &mut sums);
                    continue;
                }
                if at + 1 < n_in {
                    add_input::<M, 16>(&rows, at + 1, codes, &mut sums);
                }
                if at + 2 < n_in {
                    add_input::<M, 8>(&rows, at + 2, codes, &mut sums);
                }
            }
        }
        for (i, [low, high]) in sums.into_iter().enumerate() {
            let mut values = [0.0; PANEL];
            // SAFETY: 2 times 16 floats.
            unsafe {
                _mm512_storeu_ps(values.as_mut_ptr(), low);
                _mm512_storeu_ps(values.as_mut_ptr().add(16), high);
            }
            finish(&values, columns, out.row(first + i));
        }
    }

    /// Adds input `at` of every row times its codes, which end `SHIFT` bits below the top of each lane.
    ///
    /// # Safety
    /// Every row has an input `at`.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    unsafe fn add_input<const M: usize, const SHIFT: u32>(
        rows: &[&[f32]; M],
        at: usize,
        codes: [__m512i; 2],
        sums: &mut [[__m512; 2]; M],
    ) {
        let [low, high] =
            codes.map(|codes| _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<SHIFT>(codes))));
        for (sums, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller vouches for the input.
            let x = _mm512_set1_ps(unsafe { *row.get_unchecked(at) });
            sums[0] = _mm512_fmadd_ps(x, low, sums[0]);
            sums[1] = _mm512_fmadd_ps(x, high, sums[1]);
        }
    }
}
