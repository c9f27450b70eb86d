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
    /// Adds whole rows of an `[n_rows, n_cols]` weight, from row `first` on.
    pub(super) fn push(
        &mut self,
        first: usize,
        [original, fake_quantized]: [&[f32]; 2],
        inputs: &InputView,
        [n_rows, n_cols]: [usize; 2],
    ) {
        let n_cols = n_cols.max(1);
        for (row, (original, fake_quantized)) in original.chunks(n_cols).zip(fake_quantized.chunks(n_cols)).enumerate()
        {
            let squares = &inputs.mean_square[inputs.start_of(first + row, [n_rows, n_cols])..];
            for ((&weight, &value), &square) in original.iter().zip(fake_quantized).zip(squares) {
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
