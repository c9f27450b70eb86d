//! The error of a layer's outputs, computed from the mean squares of its inputs.

use briquette_core::InputView;

/// Sums over weights `w` with dequantized values `v` and uncorrelated inputs `x`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OutputError {
    /// `Σ E[x²]·(w − v)²`: the sum of the mean squared errors of all outputs.
    pub error: f64,
    /// `Σ E[x²]·w²`.
    pub whole: f64,
}

impl OutputError {
    /// Adds whole rows.
    pub(super) fn push(&mut self, original: &[f32], fake_quantized: &[f32], inputs: &InputView) {
        let n_cols = inputs.mean_square.len().max(1);
        for (original, fake_quantized) in original.chunks(n_cols).zip(fake_quantized.chunks(n_cols)) {
            for ((&weight, &value), &square) in original.iter().zip(fake_quantized).zip(&inputs.mean_square) {
                let apart = weight - value;
                self.error += f64::from(square * apart * apart);
                self.whole += f64::from(square * weight * weight);
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.error += other.error;
        self.whole += other.whole;
    }
}
