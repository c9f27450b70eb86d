//! Error statistics between original and decoded weights.

use crate::simd;
use serde::{Deserialize, Serialize};

/// Running sums over pairs of original weights `w` and decoded weights `v`, in f64.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ErrorStats {
    original: f64,
    error: f64,
    product: f64,
    fake_quantized: f64,
    max: f32,
}

/// The error figures of a tensor in reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ErrorFigures {
    /// Signal to quantization-noise ratio in dB; `None` without error, NaN if a value is NaN.
    pub sqnr_db: Option<f64>,
    /// Cosine of the angle between the tensors; `None` if one is all zeros, NaN if a value is NaN.
    pub cosine: Option<f64>,
    /// `‖w - v‖ / ‖w‖`; 0 without error, NaN if a value is NaN.
    pub relative: f64,
    /// The largest `|w - v|`; NaN if a value is NaN.
    pub max: f32,
}

impl ErrorStats {
    /// Adds rows of equal length.
    pub fn push(&mut self, original: &[f32], fake_quantized: &[f32]) {
        let mut sums = simd::error_sums(original, fake_quantized);
        // f32 can represent the squares of usual weights only.
        if !(1e-30..1e30).contains(&sums[0]) {
            sums = exact_sums(original, fake_quantized);
        }
        let [w2, e2, wv, v2] = sums;
        self.original += w2;
        self.error += e2;
        self.product += wv;
        self.fake_quantized += v2;
    }

    /// Adds rows of equal length, and updates the largest error.
    pub fn push_with_max(&mut self, original: &[f32], fake_quantized: &[f32]) {
        self.push(original, fake_quantized);
        let errors = original.iter().zip(fake_quantized).map(|(w, v)| (w - v).abs());
        self.max = errors.fold(self.max, larger);
    }

    /// Adds the sums of other rows.
    pub fn merge(&mut self, other: &Self) {
        self.original += other.original;
        self.error += other.error;
        self.product += other.product;
        self.fake_quantized += other.fake_quantized;
        self.max = larger(self.max, other.max);
    }

    /// Returns whether all decoded weights are 0, but not all originals.
    pub fn is_all_lost(&self) -> bool {
        self.original > 0.0 && self.fake_quantized == 0.0
    }

    /// Returns `10 log10(Σ w² / Σ (w - v)²)`, `Σ w·v / sqrt(Σ w² Σ v²)`, `sqrt(Σ (w - v)² / Σ w²)` and the
    /// largest error.
    pub fn figures(&self) -> ErrorFigures {
        let norms = (self.original * self.fake_quantized).sqrt();
        let has_error = self.error != 0.0;
        ErrorFigures {
            sqnr_db: has_error.then(|| 10.0 * (self.original / self.error).log10()),
            cosine: (norms != 0.0).then(|| (self.product / norms).clamp(-1.0, 1.0)),
            relative: if has_error { (self.error / self.original).sqrt() } else { 0.0 },
            max: self.max,
        }
    }
}

/// Returns `[Σ w², Σ (w - v)², Σ w·v, Σ v²]` in f64.
fn exact_sums(original: &[f32], fake_quantized: &[f32]) -> [f64; 4] {
    original.iter().zip(fake_quantized).fold([0.0; 4], |sums, (&w, &v)| {
        let (w, v) = (f64::from(w), f64::from(v));
        [sums[0] + w * w, sums[1] + (w - v) * (w - v), sums[2] + w * v, sums[3] + v * v]
    })
}

/// Returns the larger of two numbers, or NaN if either is NaN; `f32::max` would hide it.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_figures_do_not_depend_on_the_scale_of_weights() {
        for size in [1.0, 1e-30, 1e25] {
            let mut stats = ErrorStats::default();
            stats.push(&[3.0 * size, 4.0 * size], &[3.0 * size, 4.5 * size]);
            assert!((stats.figures().relative - 0.1).abs() < 1e-6, "{size}: {:?}", stats.figures());
            assert!(!stats.is_all_lost());
        }
        let mut lost = ErrorStats::default();
        lost.push(&[1e-40, 0.0], &[0.0, 0.0]);
        assert!(lost.is_all_lost());
    }

    #[test]
    fn figures_of_a_small_error_match_values_by_hand() {
        let mut stats = ErrorStats::default();
        stats.push_with_max(&[3.0, 4.0], &[3.0, 4.5]);
        let figures = stats.figures();
        assert!((figures.sqnr_db.unwrap() - 20.0).abs() < 1e-9);
        assert!((figures.relative - 0.1).abs() < 1e-9);
        assert_eq!(figures.max, 0.5);
        assert!(figures.cosine.unwrap() > 0.99);
    }

    #[test]
    fn nan_shows_in_every_figure() {
        for (place, other) in [(0, 1.0), (1, 1.0), (2, f32::NAN)] {
            let (mut w, mut stats) = ([1.0, 2.0, 3.0], ErrorStats::default());
            w[place] = f32::NAN;
            stats.push_with_max(&w, &[1.0, 2.0, other]);
            let mut merged = ErrorStats::default();
            merged.push_with_max(&[5.0], &[6.0]);
            merged.merge(&stats);
            for figures in [stats.figures(), merged.figures()] {
                assert!(figures.max.is_nan() && figures.relative.is_nan(), "{figures:?}");
                assert!(figures.sqnr_db.is_some_and(f64::is_nan) && figures.cosine.is_some_and(f64::is_nan));
            }
        }
    }

    #[test]
    fn equal_and_empty_tensors_have_no_error() {
        let figures = ErrorStats::default().figures();
        assert_eq!((figures.sqnr_db, figures.cosine, figures.relative), (None, None, 0.0));
    }
}
