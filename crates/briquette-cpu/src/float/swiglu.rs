//! The gated activation of a feed-forward block.
#![allow(unsafe_code)]

use super::loops::{exp, on_path};
use super::threads::PAYS;
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Computes `silu(gate) * up` of every element in place of `gate`, with `silu(x) = x / (1 + e^-x)`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up values");
    let level = active_level();
    let n_threads = if gate.len() >= PAYS { rayon::current_num_threads() } else { 1 };
    if n_threads == 1 {
        return on(level, gate, up);
    }
    let n = gate.len().div_ceil(n_threads);
    gate.par_chunks_mut(n).zip(up.par_chunks(n)).for_each(|(gate, up)| on(level, gate, up));
}

fn on(level: SimdLevel, gate: &mut [f32], up: &[f32]) {
    on_path!(level, all(gate: &mut [f32], up: &[f32]));
}

#[inline(always)]
fn all(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        // The exponential of a value of at most 0 never overflows.
        let small = exp(-x.abs());
        let share = if x < 0.0 { small } else { 1.0 } / (1.0 + small);
        *gate = x * share * *up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_function_and_gives_the_same_bits() {
        let gate: Vec<f32> = (-4003..4003).map(|i| i as f32 * 0.01).chain([0.0, -0.0, 1e-30]).collect();
        let up: Vec<f32> = (0..gate.len()).map(|i| (i % 13) as f32 - 6.0).collect();
        let mut reference = gate.clone();
        on(SimdLevel::SCALAR, &mut reference, &up);
        for ((&x, &up), &y) in gate.iter().zip(&up).zip(&reference) {
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp()) * f64::from(up);
            assert!((f64::from(y) - exact).abs() < 1e-6 * (1.0 + exact.abs()), "{x} {y} {exact}");
        }
        for level in SimdLevel::available() {
            let mut y = gate.clone();
            on(level, &mut y, &up);
            assert_eq!(y, reference, "{level}");
        }
    }

    #[test]
    fn large_inputs_saturate_and_nan_stays() {
        let mut gate = [100.0, -100.0, f32::NAN, f32::INFINITY];
        swiglu(&mut gate, &[2.0; 4]);
        assert!(gate[0] == 200.0 && gate[1] == 0.0 && gate[2].is_nan() && gate[3].is_infinite(), "{gate:?}");
    }
}
