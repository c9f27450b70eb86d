//! The gradients of a layer norm.
#![allow(unsafe_code)]

use super::loops::{on_path, reduce, sum_of_both};
use super::row_sums::row_sums;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};

/// Computes the gradients of [`add_norm`](super::add_norm()) with respect to its sum `x`, in place of `dy`.
///
/// With `s = 1 / sqrt(var(x) + epsilon)`, `n = s (x - mean(x))` and `g = gamma dy` of each row, `dx = s (g -
/// mean(g) - n mean(n g))`. Returns `dgamma = Σ n dy` and `dbeta = Σ dy` over the rows.
///
/// # Panics
/// If `x` is not whole rows, or `dy` has another length.
pub fn norm_grad(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32]) -> [Vec<f32>; 2] {
    on(active_level(), x, gamma, epsilon, dy)
}

fn on(level: SimdLevel, x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32]) -> [Vec<f32>; 2] {
    let n_cols = gamma.len();
    assert_eq!(x.len(), dy.len(), "inputs and gradients of outputs");
    assert!(x.is_empty() || n_cols > 0 && x.len().is_multiple_of(n_cols), "{} values in rows of {n_cols}", x.len());
    let mut dgamma = row_sums(n_cols, 2 * n_cols, x, dy, |x, dy, sums| {
        on_path!(level, rows(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32], sums: &mut [f32]));
    });
    let dbeta = dgamma.split_off(n_cols);
    [dgamma, dbeta]
}

#[inline(always)]
fn rows(x: &[f32], gamma: &[f32], epsilon: f32, dy: &mut [f32], sums: &mut [f32]) {
    let (n, share) = (gamma.len(), 1.0 / gamma.len() as f32);
    let (dgamma, dbeta) = sums.split_at_mut(n);
    let dbeta = &mut dbeta[..n];
    for at in (0..x.len()).step_by(n) {
        let (x, dy) = (&x[at..at + n], &mut dy[at..at + n]);
        let mean = reduce(x, 0.0, |sum, value| sum + value, |a, b| a + b) * share;
        let squares = reduce(x, 0.0, |sum, value| (value - mean).mul_add(value - mean, sum), |a, b| a + b);
        let scale = 1.0 / (squares * share + epsilon).sqrt();
        for i in 0..n {
            dgamma[i] = ((x[i] - mean) * scale).mul_add(dy[i], dgamma[i]);
            dbeta[i] += dy[i];
            dy[i] *= gamma[i];
        }
        let mean_grad = reduce(dy, 0.0, |sum, value| sum + value, |a, b| a + b) * share;
        let slope = sum_of_both(x, dy, |sum, x, dy| (x - mean).mul_add(dy, sum)) * share;
        let factor = scale * scale * slope;
        for i in 0..n {
            dy[i] = scale * (mean - x[i]).mul_add(factor, dy[i] - mean_grad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_gradients_and_gives_the_same_bits() {
        for n_cols in [1, 7, 16, 33, 384, 1000] {
            let x: Vec<f32> = (0..3 * n_cols).map(|i| (i * 37 % 101) as f32 * 0.1 - 2.0).collect();
            let dy: Vec<f32> = (0..3 * n_cols).map(|i| (i * 53 % 97) as f32 * 0.02 - 1.0).collect();
            let gamma: Vec<f32> = (0..n_cols).map(|i| 1.0 + (i % 5) as f32 * 0.1).collect();
            let (mut dx, mut exact_sums) = (dy.clone(), [vec![0.0; n_cols], vec![0.0; n_cols]]);
            let sums = on(SimdLevel::SCALAR, &x, &gamma, 1e-5, &mut dx);
            for row in 0..3 {
                let at = |values: &[f32], i: usize| f64::from(values[row * n_cols + i]);
                let mean_of = |f: &dyn Fn(usize) -> f64| (0..n_cols).map(f).sum::<f64>() / n_cols as f64;
                let mean = mean_of(&|i| at(&x, i));
                let scale = 1.0 / (mean_of(&|i| (at(&x, i) - mean).powi(2)) + 1e-5).sqrt();
                let (normed, grad) = (|i| (at(&x, i) - mean) * scale, |i| f64::from(gamma[i]) * at(&dy, i));
                let (mean_grad, slope) = (mean_of(&grad), mean_of(&|i| normed(i) * grad(i)));
                let [of_gamma, of_beta] = &mut exact_sums;
                for i in 0..n_cols {
                    let exact = scale * (grad(i) - mean_grad - normed(i) * slope);
                    assert!((at(&dx, i) - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{n_cols} {exact}");
                    of_gamma[i] += normed(i) * at(&dy, i);
                    of_beta[i] += at(&dy, i);
                }
            }
            let is_near = |(found, exact): (&f32, &f64)| (f64::from(*found) - exact).abs() < 1e-5;
            assert!(sums.iter().flatten().zip(exact_sums.iter().flatten()).all(is_near), "{n_cols}");
            for level in SimdLevel::available() {
                let mut found = dy.clone();
                assert_eq!(on(level, &x, &gamma, 1e-5, &mut found), sums, "{level} {n_cols}");
                assert_eq!(found, dx, "{level} {n_cols}");
            }
        }
        assert_eq!(norm_grad(&[], &[1.0], 1e-5, &mut []), [[0.0], [0.0]]);
    }
}
