//! Products of rows of floats and a panel of floats.
//!
//! Codes are converted to a float panel if there are more rows than a tile has.
#![allow(unsafe_code)]

use super::block::OutputBlock;
use super::operands::PANEL;
use super::turn::{SIDE, turn_avx512};
use crate::float_rows::{FloatRows, FloatTile};
use briquette_core::aligned_bytes::AlignedBytes;
use std::arch::x86_64::*;
use std::cell::RefCell;

thread_local! {
    static FLOATS: RefCell<AlignedBytes> = RefCell::new(AlignedBytes::default());
}

/// Computes `out[m, n] = Σ x[m, i] * weights[n][i]` for as many rows of weights as `out` has columns.
///
/// Uses fused multiply-add, with inputs in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
pub(super) fn multiply_weight_rows(rows: &FloatRows, weights: &[f32], out: &mut OutputBlock) {
    with_floats(rows.n_in(), |floats| {
        lay_out(weights, floats);
        for rows in rows.tiles() {
            macro_rules! for_rows {
                ($($n:literal)*) => {
                    match rows.n_rows {
                        $($n => tile::<$n>(&rows, floats, out),)*
                        _ => unreachable!("more rows than a tile has"),
                    }
                };
            }
            for_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
fn tile<const M: usize>(rows: &FloatTile, floats: &[[f32; PANEL]], out: &mut OutputBlock) {
    let sums = sums::<M>(rows.x.as_chunks().0, floats);
    for (i, sums) in sums.into_iter().enumerate() {
        let row = out.row(rows.first + i);
        let n = row.len();
        row.copy_from_slice(&to_array(sums)[..n]);
    }
}

/// Packs rows of up to 32 outputs into a panel, input by input, with zeros for missing outputs.
#[target_feature(enable = "avx512f")]
fn lay_out(weights: &[f32], panel: &mut [[f32; PANEL]]) {
    let n_in = panel.len();
    let n_out = weights.len().checked_div(n_in).unwrap_or(0);
    let mut square = [[0.0; SIDE]; SIDE];
    for half in [0, SIDE] {
        let whole = if half + SIDE <= n_out { n_in / SIDE * SIDE } else { 0 };
        for at in (0..whole).step_by(SIDE) {
            // SAFETY: there are 16 rows starting at `half`, each with 16 inputs starting at `at`.
            unsafe { turn_avx512(&weights[half * n_in + at..], n_in, &mut square) };
            for (panel, inputs) in panel[at..at + SIDE].iter_mut().zip(&square) {
                panel[half..half + SIDE].copy_from_slice(inputs);
            }
        }
        for (input, panel) in panel.iter_mut().enumerate().skip(whole) {
            for (lane, value) in panel[half..half + SIDE].iter_mut().enumerate() {
                *value = if half + lane < n_out { weights[(half + lane) * n_in + input] } else { 0.0 };
            }
        }
    }
}

/// Calls `f` with memory for a panel `[n_in][32]` of floats with unspecified values.
pub(super) fn with_floats(n_in: usize, f: impl FnOnce(&mut [[f32; PANEL]])) {
    let mut buffer = FLOATS.take();
    buffer.make_room(n_in * size_of::<[f32; PANEL]>());
    f(bytemuck::cast_slice_mut(buffer.bytes_mut()));
    FLOATS.set(buffer);
}

/// Returns `Σ inputs[i][m] * weights[i][n]` with fused multiply-add, inputs in order; `weights` may be longer.
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

/// Adds one input of each row times its weights.
#[inline]
#[target_feature(enable = "avx512f,fma")]
pub(super) fn add_products<const M: usize>(x: &[f32; M], low: __m512, high: __m512, sums: &mut [[__m512; 2]; M]) {
    for (sums, &x) in sums.iter_mut().zip(x) {
        let x = _mm512_set1_ps(x);
        sums[0] = _mm512_fmadd_ps(x, low, sums[0]);
        sums[1] = _mm512_fmadd_ps(x, high, sums[1]);
    }
}

/// Returns the sums of a row as an array.
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
