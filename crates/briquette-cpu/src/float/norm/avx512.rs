//! Layer norm of a sum for rows of whole AVX-512 vectors.
#![allow(unsafe_code)]

use crate::float::loops::{LANES, join_lanes};
use std::arch::x86_64::*;

/// Rows that are computed together, to hide latency.
const AT_ONCE: usize = 4;

/// See [`add_norm`](super::add_norm()): the same operations in the same order as on other levels.
///
/// # Panics
/// If 16 does not divide the length of a row, or the lengths disagree.
#[target_feature(enable = "avx512f,fma")]
pub(super) fn add_norm(x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    let n = gamma.len();
    assert!(n > 0 && n.is_multiple_of(LANES) && x.len().is_multiple_of(n) && beta.len() == n, "rows of whole vectors");
    assert!(shortcut.is_empty() || shortcut.len() == x.len(), "a shortcut for each row");
    let whole = x.len() / (AT_ONCE * n) * AT_ONCE * n;
    let (together, rest) = x.split_at_mut(whole);
    let of = |at: usize| if shortcut.is_empty() { &[] } else { &shortcut[at..] };
    for (index, x) in together.chunks_exact_mut(AT_ONCE * n).enumerate() {
        // SAFETY: the lengths were just compared.
        unsafe { rows::<AT_ONCE>(x, of(index * AT_ONCE * n), gamma, beta, epsilon) };
    }
    for (index, x) in rest.chunks_exact_mut(n).enumerate() {
        // SAFETY: as above.
        unsafe { rows::<1>(x, of(whole + index * n), gamma, beta, epsilon) };
    }
}

/// # Safety
/// `x` has `M` rows of the length of `gamma` and `beta`, which is a multiple of 16. `shortcut` has as many
/// values as `x` or none.
#[target_feature(enable = "avx512f,fma")]
#[inline]
unsafe fn rows<const M: usize>(x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    let (n, x) = (gamma.len(), x.as_mut_ptr());
    let (mut sums, mut squares) = ([_mm512_setzero_ps(); M], [_mm512_setzero_ps(); M]);
    // SAFETY: the caller guarantees the lengths.
    unsafe {
        for at in (0..n).step_by(LANES) {
            for (row, sum) in sums.iter_mut().enumerate() {
                let place = x.add(row * n + at);
                let mut value = _mm512_loadu_ps(place);
                if !shortcut.is_empty() {
                    value = _mm512_add_ps(value, _mm512_loadu_ps(shortcut.as_ptr().add(row * n + at)));
                    _mm512_storeu_ps(place, value);
                }
                *sum = _mm512_add_ps(*sum, value);
            }
        }
        let means = sums.map(|sum| _mm512_set1_ps(joined(sum) / n as f32));
        for at in (0..n).step_by(LANES) {
            for (row, squares) in squares.iter_mut().enumerate() {
                let value = _mm512_sub_ps(_mm512_loadu_ps(x.add(row * n + at)), means[row]);
                *squares = _mm512_fmadd_ps(value, value, *squares);
            }
        }
        let scales = squares.map(|squares| _mm512_set1_ps(1.0 / (joined(squares) / n as f32 + epsilon).sqrt()));
        for at in (0..n).step_by(LANES) {
            let (gamma, beta) = (_mm512_loadu_ps(gamma.as_ptr().add(at)), _mm512_loadu_ps(beta.as_ptr().add(at)));
            for row in 0..M {
                let place = x.add(row * n + at);
                let value = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(place), means[row]), scales[row]);
                _mm512_storeu_ps(place, _mm512_fmadd_ps(value, gamma, beta));
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn joined(sum: __m512) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: 16 floats.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
    join_lanes(lanes, |a, b| a + b)
}
