//! The gradients of an RMS norm.
#![allow(unsafe_code)]

use super::loops::{on_path, reduce, sum_of_both};
use super::row_sums::row_sums;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};

/// Computes the gradients of [`rms_norm`](super::rms_norm()) in place of `dy`.
///
/// With `s = 1 / sqrt(mean(x²) + epsilon)` of each row, `dx = s (gamma dy - x s² mean(x gamma dy))`. Returns
/// `dgamma = Σ s x dy` over the rows.
///
/// # Panics
/// If `x` is not whole rows, or `dy` has another length.
pub fn rms_norm_grad(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32]) -> Vec<f32> {
    on(active_level(), x, gamma, epsilon, dy)
}

fn on(level: SimdLevel, x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32]) -> Vec<f32> {
    let n_cols = gamma.len();
    assert_eq!(x.len(), dy.len(), "inputs and gradients of outputs");
    assert!(x.is_empty() || n_cols > 0 && x.len().is_multiple_of(n_cols), "{} values in rows of {n_cols}", x.len());
    row_sums(n_cols, n_cols, x, dy, |x, dy, dgamma| {
        on_path!(level, rows(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32], dgamma: &mut [f32]));
    })
}

#[inline(always)]
fn rows(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32], dgamma: &mut [f32]) {
    let n = gamma.len();
    let dgamma = &mut dgamma[..n];
    for at in (0..x.len()).step_by(n) {
        let (x, dy) = (&x[at..at + n], &mut dy[at..at + n]);
        let squares = reduce(x, 0.0, |sum, value| value.mul_add(value, sum), |a, b| a + b);
        let scale = 1.0 / (squares / n as f32 + epsilon).sqrt();
        for i in 0..n {
            dgamma[i] = (x[i] * scale).mul_add(dy[i], dgamma[i]);
            dy[i] *= gamma[i];
        }
        let mean = sum_of_both(x, dy, |sum, x, dy| x.mul_add(dy, sum)) / n as f32;
        let factor = scale * scale * mean;
        for i in 0..n {
            dy[i] = scale * (-x[i]).mul_add(factor, dy[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_gradients_and_gives_the_same_bits() {
        for n_cols in [1, 7, 16, 33, 576] {
            let x: Vec<f32> = (0..3 * n_cols).map(|i| (i * 37 % 101) as f32 * 0.1 - 2.0).collect();
            let dy: Vec<f32> = (0..3 * n_cols).map(|i| (i * 53 % 97) as f32 * 0.02 - 1.0).collect();
            let gamma: Vec<f32> = (0..n_cols).map(|i| 1.0 + (i % 5) as f32 * 0.1).collect();
            let (mut dx, mut exact_dgamma) = (dy.clone(), vec![0.0; n_cols]);
            let dgamma = on(SimdLevel::SCALAR, &x, &gamma, 1e-5, &mut dx);
            for row in 0..3 {
                let at = |values: &[f32], i: usize| f64::from(values[row * n_cols + i]);
                let mean = |f: &dyn Fn(usize) -> f64| (0..n_cols).map(f).sum::<f64>() / n_cols as f64;
                let scale = 1.0 / (mean(&|i| at(&x, i).powi(2)) + 1e-5).sqrt();
                let slope = mean(&|i| at(&x, i) * f64::from(gamma[i]) * at(&dy, i));
                for i in 0..n_cols {
                    let exact = scale * (f64::from(gamma[i]) * at(&dy, i) - at(&x, i) * scale * scale * slope);
                    assert!((at(&dx, i) - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{n_cols} {exact}");
                    exact_dgamma[i] += scale * at(&x, i) * at(&dy, i);
                }
            }
            let is_near = |(found, exact): (&f32, &f64)| (f64::from(*found) - exact).abs() < 1e-5;
            assert!(dgamma.iter().zip(&exact_dgamma).all(is_near), "{n_cols}");
            for level in SimdLevel::available() {
                let mut found = dy.clone();
                assert_eq!(on(level, &x, &gamma, 1e-5, &mut found), dgamma, "{level} {n_cols}");
                assert_eq!(found, dx, "{level} {n_cols}");
            }
        }
        assert!(rms_norm_grad(&[], &[], 1e-5, &mut []).is_empty());
    }

    #[test]
    fn many_rows_have_the_gradients_of_each_alone() {
        let gamma = vec![0.5; 300];
        let x: Vec<f32> = (0..300 * 401).map(|i| (i % 77) as f32 - 30.0).collect();
        let (mut all, mut one) = (x.clone(), x.clone());
        let dgamma = rms_norm_grad(&x, &gamma, 1e-6, &mut all);
        let mut sums = vec![0.0_f64; 300];
        for (x, dy) in x.chunks(300).zip(one.chunks_mut(300)) {
            let of_row = rms_norm_grad(x, &gamma, 1e-6, dy);
            sums.iter_mut().zip(of_row).for_each(|(sum, value)| *sum += f64::from(value));
        }
        assert_eq!(all, one);
        assert!(dgamma.iter().zip(&sums).all(|(found, sum)| (f64::from(*found) - sum).abs() < 1e-5 * sum.abs()));
    }
}
