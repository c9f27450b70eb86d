//! The gradient of GELU.
#![allow(unsafe_code)]

use super::loops::{exp, on_path, phi};
use super::threads::PAYS;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// `1 / sqrt(2 pi)`.
const PEAK: f32 = 0.398_942_3;

/// Computes the gradient of [`gelu`](super::gelu()) in place of `dy`.
///
/// `dx = (Phi(x) + x e^(-x²/2) / sqrt(2 pi)) dy`.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_grad(x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "inputs and gradients of outputs");
    let level = active_level();
    let n_threads = if x.len() >= PAYS { rayon::current_num_threads() } else { 1 };
    if n_threads == 1 {
        return on(level, x, dy);
    }
    let n = x.len().div_ceil(n_threads);
    x.par_chunks(n).zip(dy.par_chunks_mut(n)).for_each(|(x, dy)| on(level, x, dy));
}

fn on(level: SimdLevel, x: &[f32], dy: &mut [f32]) {
    on_path!(level, all(x: &[f32], dy: &mut [f32]));
}

#[inline(always)]
fn all(x: &[f32], dy: &mut [f32]) {
    let dy = &mut dy[..x.len()];
    for i in 0..x.len() {
        let slope = (x[i] * PEAK).mul_add(exp(x[i] * x[i] * -0.5), phi(x[i]));
        dy[i] *= slope;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the derivative by the series of `Phi`.
    fn exact(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / (2.0 * f64::from(n));
            sum += term / f64::from(2 * n + 1);
        }
        let root = (2.0 * std::f64::consts::PI).sqrt();
        0.5 + sum / root + x * (-x * x / 2.0).exp() / root
    }

    #[test]
    fn every_path_is_near_the_exact_gradient_and_gives_the_same_bits() {
        let x: Vec<f32> = (-5003..5003).map(|i| i as f32 * 1e-3).chain([0.0, -0.0, 1e-30]).collect();
        let dy: Vec<f32> = (0..x.len()).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
        let mut reference = dy.clone();
        on(SimdLevel::SCALAR, &x, &mut reference);
        for ((&x, &dy), &dx) in x.iter().zip(&dy).zip(&reference) {
            assert!((f64::from(dx) - exact(f64::from(x)) * f64::from(dy)).abs() < 1e-6, "{x} {dx}");
        }
        for level in SimdLevel::available() {
            let mut dx = dy.clone();
            on(level, &x, &mut dx);
            assert_eq!(dx, reference, "{level}");
        }
    }

    #[test]
    fn large_inputs_saturate_and_nan_stays() {
        let mut dy = [2.0; 4];
        gelu_grad(&[9.0, 1e15, -1e15, f32::NAN], &mut dy);
        assert!(dy[..3] == [2.0, 2.0, 0.0] && dy[3].is_nan(), "{dy:?}");
    }
}
