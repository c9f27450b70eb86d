//! RMS norm.
#![allow(unsafe_code)]

use super::loops::{on_path, reduce};
use super::threads::rows_per_task;
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Computes `y[r] = x[r] / sqrt(mean(x[r]²) + epsilon) * gamma` in place, for rows of the length of `gamma`.
///
/// # Panics
/// If `x` is not whole rows.
pub fn rms_norm(x: &mut [f32], gamma: &[f32], epsilon: f32) {
    let n_cols = gamma.len();
    if x.is_empty() {
        return;
    }
    assert!(n_cols > 0 && x.len().is_multiple_of(n_cols), "{} values in rows of {n_cols}", x.len());
    let (level, n) = (active_level(), rows_per_task(x.len() / n_cols, n_cols) * n_cols);
    if n >= x.len() {
        on(level, x, gamma, epsilon);
    } else {
        x.par_chunks_mut(n).for_each(|x| on(level, x, gamma, epsilon));
    }
}

fn on(level: SimdLevel, x: &mut [f32], gamma: &[f32], epsilon: f32) {
    on_path!(level, rows(x: &mut [f32], gamma: &[f32], epsilon: f32));
}

#[inline(always)]
fn rows(x: &mut [f32], gamma: &[f32], epsilon: f32) {
    for x in x.chunks_exact_mut(gamma.len()) {
        let squares = reduce(x, 0.0, |sum, value| value.mul_add(value, sum), |a, b| a + b);
        let scale = 1.0 / (squares / x.len() as f32 + epsilon).sqrt();
        for (x, gamma) in x.iter_mut().zip(gamma) {
            *x = *x * scale * *gamma;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_norm_and_gives_the_same_bits() {
        for n_cols in [1, 7, 16, 33, 576] {
            let x: Vec<f32> = (0..3 * n_cols).map(|i| (i * 37 % 101) as f32 * 0.1 - 2.0).collect();
            let gamma: Vec<f32> = (0..n_cols).map(|i| 1.0 + (i % 5) as f32 * 0.1).collect();
            let mut reference = x.clone();
            on(SimdLevel::SCALAR, &mut reference, &gamma, 1e-5);
            for (i, &value) in reference.iter().enumerate() {
                let row = &x[i / n_cols * n_cols..][..n_cols];
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n_cols as f64;
                let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(gamma[i % n_cols]);
                assert!((f64::from(value) - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{n_cols}");
            }
            for level in SimdLevel::available() {
                let mut y = x.clone();
                on(level, &mut y, &gamma, 1e-5);
                assert_eq!(y, reference, "{level} {n_cols}");
            }
        }
        rms_norm(&mut [], &[], 1e-5);
    }

    #[test]
    fn threads_take_whole_rows() {
        let gamma = vec![1.0; 300];
        let x: Vec<f32> = (0..300 * 401).map(|i| (i % 77) as f32 - 30.0).collect();
        let (mut all, mut one) = (x.clone(), x);
        rms_norm(&mut all, &gamma, 1e-6);
        on(active_level(), &mut one, &gamma, 1e-6);
        assert_eq!(all, one);
    }
}
