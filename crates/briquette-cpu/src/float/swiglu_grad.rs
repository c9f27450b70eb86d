//! The gradients of the gated activation of a feed-forward block.
#![allow(unsafe_code)]

use super::loops::{exp, on_path};
use super::threads::PAYS;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Computes the gradients of [`swiglu`](super::swiglu()).
///
/// With `s = 1 / (1 + e^-gate)`, `dgate = up s (1 + gate (1 - s)) dy` in place of `dy`, and `dup = gate s dy`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_grad(gate: &[f32], up: &[f32], dy: &mut [f32], dup: &mut [f32]) {
    assert_eq!([gate.len(), up.len(), dup.len()], [dy.len(); 3], "gate and up values, and gradients");
    let level = active_level();
    let n_threads = if gate.len() >= PAYS { rayon::current_num_threads() } else { 1 };
    if n_threads == 1 {
        return on(level, gate, up, dy, dup);
    }
    let n = gate.len().div_ceil(n_threads);
    let inputs = gate.par_chunks(n).zip(up.par_chunks(n));
    let grads = dy.par_chunks_mut(n).zip(dup.par_chunks_mut(n));
    inputs.zip(grads).for_each(|((gate, up), (dy, dup))| on(level, gate, up, dy, dup));
}

fn on(level: SimdLevel, gate: &[f32], up: &[f32], dy: &mut [f32], dup: &mut [f32]) {
    on_path!(level, all(gate: &[f32], up: &[f32], dy: &mut [f32], dup: &mut [f32]));
}

#[inline(always)]
fn all(gate: &[f32], up: &[f32], dy: &mut [f32], dup: &mut [f32]) {
    let n = gate.len();
    let (up, dy, dup) = (&up[..n], &mut dy[..n], &mut dup[..n]);
    for i in 0..n {
        let x = gate[i];
        // The exponential of a value of at most 0 never overflows.
        let small = exp(-x.abs());
        let inverse = 1.0 / (1.0 + small);
        let (larger, smaller) = (inverse, small * inverse);
        let (share, rest) = if x < 0.0 { (smaller, larger) } else { (larger, smaller) };
        dup[i] = x * share * dy[i];
        dy[i] *= up[i] * share * x.mul_add(rest, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_gradients_and_gives_the_same_bits() {
        let gate: Vec<f32> = (-4003..4003).map(|i| i as f32 * 0.01).chain([0.0, -0.0, 1e-30]).collect();
        let up: Vec<f32> = (0..gate.len()).map(|i| (i % 13) as f32 - 6.0).collect();
        let dy: Vec<f32> = (0..gate.len()).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
        let (mut dgate, mut dup) = (dy.clone(), vec![f32::NAN; dy.len()]);
        on(SimdLevel::SCALAR, &gate, &up, &mut dgate, &mut dup);
        for i in 0..gate.len() {
            let [x, up, dy] = [gate[i], up[i], dy[i]].map(f64::from);
            let share = 1.0 / (1.0 + (-x).exp());
            let exact = [up * share * (1.0 + x * (1.0 - share)) * dy, x * share * dy];
            for (found, exact) in [dgate[i], dup[i]].into_iter().zip(exact) {
                assert!((f64::from(found) - exact).abs() < 2e-6 * (1.0 + exact.abs()), "{x} {found} {exact}");
            }
        }
        for level in SimdLevel::available() {
            let (mut found, mut found_up) = (dy.clone(), vec![f32::NAN; dy.len()]);
            on(level, &gate, &up, &mut found, &mut found_up);
            assert!(found == dgate && found_up == dup, "{level}");
        }
    }

    #[test]
    fn large_inputs_saturate_and_nan_stays() {
        let (mut dy, mut dup) = ([1.0; 3], [0.0; 3]);
        swiglu_grad(&[100.0, -100.0, f32::NAN], &[2.0; 3], &mut dy, &mut dup);
        assert!(dy[0] == 2.0 && dy[1] == 0.0 && dy[2].is_nan(), "{dy:?}");
        assert!(dup[0] == 100.0 && dup[1] == 0.0 && dup[2].is_nan(), "{dup:?}");
    }
}
