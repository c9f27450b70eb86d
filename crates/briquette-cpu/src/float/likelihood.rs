//! The likelihood of target tokens from logits.
#![allow(unsafe_code)]

use super::loops::{exp, on_path, reduce};
use briquette_core::simd::Isa;
use briquette_core::simd::{SimdLevel, active_level};

/// Elements that are summed in f32 before the sum is added in f64.
const BLOCK: usize = 1024;

/// Returns `ln Σ e^score` of a row of scores, or NaN if a score is NaN.
pub fn log_sum_exp(scores: &[f32]) -> f64 {
    on(active_level(), scores)
}

fn on(level: SimdLevel, scores: &[f32]) -> f64 {
    let mut found = f64::NAN;
    let out = &mut found;
    on_path!(level, row(scores: &[f32], out: &mut f64));
    found
}

#[inline(always)]
fn row(scores: &[f32], out: &mut f64) {
    let larger = |a: f32, b: f32| if a < b { b } else { a };
    let max = reduce(scores, f32::NEG_INFINITY, larger, larger);
    let mut sum = 0.0;
    for block in scores.chunks(BLOCK) {
        sum += f64::from(reduce(block, 0.0, |sum, score| sum + exp(score - max), |a, b| a + b));
    }
    *out = f64::from(max) + sum.ln();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_near_the_exact_sum_and_gives_the_same_bits() {
        for n in [1, 7, 16, 1000, 49_152] {
            let scores: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1999) as f32 / 50.0 - 20.0).collect();
            let exact = scores.iter().map(|score| f64::from(*score).exp()).sum::<f64>().ln();
            let found = on(SimdLevel::SCALAR, &scores);
            assert!((found - exact).abs() < 1e-6, "{n} {found} {exact}");
            assert!(SimdLevel::available().into_iter().all(|level| on(level, &scores) == found));
        }
    }

    #[test]
    fn large_scores_do_not_overflow_and_nan_stays() {
        assert!((log_sum_exp(&[1000.0, 1000.0]) - 1000.0 - 2_f64.ln()).abs() < 1e-9);
        assert!(log_sum_exp(&[1.0, f32::NAN, 2.0]).is_nan());
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
    }
}
