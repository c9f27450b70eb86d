//! GELU.

use super::loops;
use super::threads::PAYS;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Computes `x * Phi(x)` of every element in place, within 1e-6 of the exact function.
pub fn gelu(x: &mut [f32]) {
    let level = active_level();
    let n_threads = if x.len() >= PAYS { rayon::current_num_threads() } else { 1 };
    if n_threads == 1 {
        return gelu_on(level, x);
    }
    x.par_chunks_mut(x.len().div_ceil(n_threads)).for_each(|x| gelu_on(level, x));
}

fn gelu_on(level: SimdLevel, x: &mut [f32]) {
    loops::gelu(level, x);
}

/// Like [`gelu`], but within 6e-5 and in the calling thread: for values that are next rounded to 8-bit codes.
pub fn coarse_gelu(level: SimdLevel, x: &mut [f32]) {
    loops::coarse_gelu(level, x);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `Phi` by its series.
    fn exact(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / (2.0 * f64::from(n));
            sum += term / f64::from(2 * n + 1);
        }
        x * (0.5 + sum / (2.0 * std::f64::consts::PI).sqrt())
    }

    #[test]
    fn every_path_is_near_the_exact_function_and_gives_the_same_bits() {
        let x: Vec<f32> = (-5003..5003).map(|i| i as f32 * 1e-3).chain([0.0, -0.0, 1e-30]).collect();
        let mut reference = x.clone();
        gelu_on(SimdLevel::SCALAR, &mut reference);
        for (&x, &y) in x.iter().zip(&reference) {
            assert!((f64::from(y) - exact(f64::from(x))).abs() < 2e-6, "{x} {y}");
        }
        for level in SimdLevel::available() {
            let mut y = x.clone();
            gelu_on(level, &mut y);
            assert_eq!(y, reference, "{level}");
        }
    }

    #[test]
    fn coarse_gelu_is_near_the_exact_function_on_every_path() {
        let x: Vec<f32> = (-5003..5003).map(|i| i as f32 * 1e-3).chain([0.0, -0.0, 1e-30, 9.0, -100.0]).collect();
        let (mut reference, mut far) = (x.clone(), [f32::NAN, f32::INFINITY]);
        coarse_gelu(SimdLevel::SCALAR, &mut reference);
        for (&x, &y) in x.iter().zip(&reference) {
            let exact = if x.abs() > 8.0 { x.max(0.0).into() } else { exact(f64::from(x)) };
            assert!((f64::from(y) - exact).abs() < 6e-5 * f64::from(x.abs()).min(1.0) + 1e-12, "{x} {y}");
        }
        for level in SimdLevel::available() {
            let mut y = x.clone();
            coarse_gelu(level, &mut y);
            assert_eq!(y, reference, "{level}");
            coarse_gelu(level, &mut far);
            assert!(far[0].is_nan() && far[1].is_infinite());
        }
    }

    #[test]
    fn large_inputs_are_unchanged_or_zero_and_nan_stays() {
        for level in SimdLevel::available() {
            let mut x = [9.0, 1e30, -9.0, -100.0, f32::NAN, f32::INFINITY];
            gelu_on(level, &mut x);
            assert!(x[0] == 9.0 && x[1] == 1e30 && x[2].abs() < 2e-6 && x[3].abs() < 2e-5, "{level} {x:?}");
            assert!(x[4].is_nan() && x[5].is_infinite());
        }
    }
}
