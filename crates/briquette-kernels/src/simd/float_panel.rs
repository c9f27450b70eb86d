//! Rows of floats times a panel of floats. Codes are decoded to one where there are more rows than a tile has.
#![allow(unsafe_code)]

use super::operands::PANEL;
use crate::aligned_bytes::AlignedBytes;
use std::arch::x86_64::*;
use std::cell::RefCell;

thread_local! {
    static FLOATS: RefCell<AlignedBytes> = RefCell::new(AlignedBytes::default());
}

/// Gives `f` memory for a panel `[n_in][32]` of floats, of any values.
pub(super) fn with_floats(n_in: usize, f: impl FnOnce(&mut [[f32; PANEL]])) {
    let mut buffer = FLOATS.take();
    buffer.resize(n_in * size_of::<[f32; PANEL]>());
    f(bytemuck::cast_slice_mut(buffer.bytes_mut()));
    FLOATS.set(buffer);
}

/// `Σ inputs[i][m] * weights[i][n]`, with fused multiplications, inputs in order; `weights` may be longer.
#[inline]
#[target_feature(enable = "avx512f,fma")]
pub(super) fn sums<const M: usize>(inputs: &[[f32; M]], weights: &[[f32; PANEL]]) -> [[__m512; 2]; M] {
    let mut sums = [[_mm512_setzero_ps(); 2]; M];
    for (x, weights) in inputs.iter().zip(weights) {
        // SAFETY: 2 times 16 floats.
        let [low, high] = unsafe { [0, 16].map(|at| _mm512_loadu_ps(weights.as_ptr().add(at))) };
        add_products(x, low, high, &mut sums);
    }
    sums
}

/// Adds an input of each row times the weights of its outputs.
#[inline]
#[target_feature(enable = "avx512f,fma")]
pub(super) fn add_products<const M: usize>(x: &[f32; M], low: __m512, high: __m512, sums: &mut [[__m512; 2]; M]) {
    for (sums, &x) in sums.iter_mut().zip(x) {
        let x = _mm512_set1_ps(x);
        sums[0] = _mm512_fmadd_ps(x, low, sums[0]);
        sums[1] = _mm512_fmadd_ps(x, high, sums[1]);
    }
}

/// The sums of a row as an array.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn to_array([low, high]: [__m512; 2]) -> [f32; PANEL] {
    let mut values = [0.0; PANEL];
    store(low, high, &mut values);
    values
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(low: __m512, high: __m512, values: &mut [f32; PANEL]) {
    // SAFETY: 2 times 16 floats.
    unsafe {
        _mm512_storeu_ps(values.as_mut_ptr(), low);
        _mm512_storeu_ps(values.as_mut_ptr().add(16), high);
    }
}
