//! Layer norm of a sum.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx512;

use super::loops;
use super::threads::rows_per_task;
#[cfg(target_arch = "x86_64")]
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};
use rayon::prelude::*;

/// Computes the layer norm of `s = x[r] + shortcut[r]` in place, for rows of the length of `gamma`.
///
/// `x[r] = (s - mean(s)) / sqrt(var(s) + epsilon) * gamma + beta`. An empty `shortcut` counts as zeros.
///
/// # Panics
/// If the lengths disagree.
pub fn add_norm(x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    let n_cols = gamma.len();
    assert!(beta.len() == n_cols && (shortcut.is_empty() || shortcut.len() == x.len()), "rows of one length");
    if n_cols == 0 || x.is_empty() {
        return;
    }
    assert!(x.len().is_multiple_of(n_cols), "{} values in rows of {n_cols}", x.len());
    let (level, n) = (active_level(), rows_per_task(x.len() / n_cols, n_cols) * n_cols);
    let run = |x: &mut [f32], shortcut: &[f32]| add_norm_on(level, x, shortcut, gamma, beta, epsilon);
    if n >= x.len() {
        run(x, shortcut);
    } else if shortcut.is_empty() {
        x.par_chunks_mut(n).for_each(|x| run(x, &[]));
    } else {
        x.par_chunks_mut(n).zip(shortcut.par_chunks(n)).for_each(|(x, shortcut)| run(x, shortcut));
    }
}

fn add_norm_on(level: SimdLevel, x: &mut [f32], shortcut: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32) {
    match level.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Vnni if gamma.len().is_multiple_of(loops::LANES) => {
            // SAFETY: a level exists only if its instructions are available.
            unsafe { avx512::add_norm(x, shortcut, gamma, beta, epsilon) }
        }
        _ => loops::add_norm(level, x, shortcut, gamma, beta, epsilon),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_norm() {
        for n_cols in [1, 7, 16, 33, 384, 1000] {
            let x: Vec<f32> = (0..7 * n_cols).map(|i| (i * 37 % 101) as f32 * 0.1 - 2.0).collect();
            let shortcut: Vec<f32> = (0..7 * n_cols).map(|i| (i * 53 % 97) as f32 * 0.2 - 1.0).collect();
            let gamma: Vec<f32> = (0..n_cols).map(|i| 1.0 + (i % 5) as f32 * 0.1).collect();
            let beta: Vec<f32> = (0..n_cols).map(|i| (i % 3) as f32 * 0.1).collect();
            for level in SimdLevel::available() {
                for shortcut in [&shortcut[..], &[]] {
                    let (mut y, mut plain) = (x.clone(), x.clone());
                    add_norm_on(level, &mut y, shortcut, &gamma, &beta, 1e-5);
                    loops::add_norm(level, &mut plain, shortcut, &gamma, &beta, 1e-5);
                    assert_eq!(y, plain, "{level} {n_cols}");
                    for row in 0..7 {
                        let sum = |col: usize| {
                            let at = row * n_cols + col;
                            f64::from(x[at]) + shortcut.get(at).map_or(0.0, |value| f64::from(*value))
                        };
                        let mean = (0..n_cols).map(sum).sum::<f64>() / n_cols as f64;
                        let var = (0..n_cols).map(|col| (sum(col) - mean).powi(2)).sum::<f64>() / n_cols as f64;
                        for col in 0..n_cols {
                            let exact =
                                (sum(col) - mean) / (var + 1e-5).sqrt() * f64::from(gamma[col]) + f64::from(beta[col]);
                            assert!(
                                (f64::from(y[row * n_cols + col]) - exact).abs() < 1e-5 * (1.0 + exact.abs()),
                                "{level} {n_cols}"
                            );
                        }
                    }
                }
            }
        }
    }
}
