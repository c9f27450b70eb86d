//! How far simulated weights are from the originals.

use crate::simd;
use serde::{Deserialize, Serialize};

/// Running sums over pairs of original `w` and simulated `v`, in f64.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ErrorStats {
    original: f64,
    error: f64,
    product: f64,
    simulated: f64,
    max: f32,
}

/// The figures of a tensor's error, as reports show them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ErrorFigures {
    /// Signal to quantization noise ratio in dB; none where there is no error.
    pub sqnr_db: Option<f64>,
    /// Cosine of the angle between the tensors; none where one is all zeros.
    pub cosine: Option<f64>,
    /// `‖w - v‖ / ‖w‖`; 0 where there is no error.
    pub relative: f64,
    /// The largest `|w - v|`.
    pub max: f32,
}

impl ErrorStats {
    /// Adds rows of equal length.
    pub fn push(&mut self, original: &[f32], simulated: &[f32]) {
        let [w2, e2, wv, v2] = simd::error_sums(original, simulated);
        self.original += w2;
        self.error += e2;
        self.product += wv;
        self.simulated += v2;
    }

    /// Adds rows of equal length, and keeps the largest single error too.
    pub fn push_with_max(&mut self, original: &[f32], simulated: &[f32]) {
        self.push(original, simulated);
        let errors = original.iter().zip(simulated).map(|(w, v)| (w - v).abs());
        self.max = errors.fold(self.max, f32::max);
    }

    /// Adds the sums of other rows.
    pub fn merge(&mut self, other: &Self) {
        self.original += other.original;
        self.error += other.error;
        self.product += other.product;
        self.simulated += other.simulated;
        self.max = self.max.max(other.max);
    }

    /// `10 log10(Σ w² / Σ (w - v)²)`, `Σ w·v / sqrt(Σ w² Σ v²)`, `sqrt(Σ (w - v)² / Σ w²)` and the largest error.
    pub fn figures(&self) -> ErrorFigures {
        let norms = (self.original * self.simulated).sqrt();
        ErrorFigures {
            sqnr_db: (self.error > 0.0).then(|| 10.0 * (self.original / self.error).log10()),
            cosine: (norms > 0.0).then(|| (self.product / norms).min(1.0)),
            relative: if self.error > 0.0 { (self.error / self.original).sqrt() } else { 0.0 },
            max: self.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_error_by_hand() {
        let mut stats = ErrorStats::default();
        stats.push_with_max(&[3.0, 4.0], &[3.0, 4.5]);
        let figures = stats.figures();
        assert!((figures.sqnr_db.unwrap() - 20.0).abs() < 1e-9);
        assert!((figures.relative - 0.1).abs() < 1e-9);
        assert_eq!(figures.max, 0.5);
        assert!(figures.cosine.unwrap() > 0.99);
    }

    #[test]
    fn equal_and_empty_tensors_have_no_error() {
        let figures = ErrorStats::default().figures();
        assert_eq!((figures.sqnr_db, figures.cosine, figures.relative), (None, None, 0.0));
    }
}
