//! Hidden states and attention probabilities of every block, for distillation.

use super::{AnyTensor, GraphNet, RunInputs};
use burn::tensor::Tensor;

/// Intermediate results of each block for a batch.
#[derive(Debug, Clone, Default)]
pub struct NetworkTrace {
    /// Hidden state after each block, `[batch, length, width]`.
    pub hidden: Vec<Tensor<3>>,
    /// Attention probabilities `[batch, heads, length, length]`; rows sum to 1.
    pub attention: Vec<Tensor<4>>,
    /// Attention values `[batch, length, width]`.
    pub values: Vec<Tensor<3>>,
}

impl GraphNet {
    /// Returns the hidden state after each block, and with `has_attention` also probabilities and values.
    ///
    /// Attention probabilities take memory quadratic in the length. They are the ones that the run uses, with rotary
    /// positions and biases, before dropout.
    ///
    /// # Panics
    /// If the graph has no blocks, or a token exceeds the vocabulary.
    pub fn trace(&self, inputs: &RunInputs, has_attention: bool) -> NetworkTrace {
        let states = self.hidden_states();
        let (hidden, taps) = match has_attention {
            true => self.run_tapping(inputs, &states),
            false => (self.run(inputs, &states), Vec::new()),
        };
        let (attention, values) = taps.into_iter().map(|tap| (tap.probabilities, tap.values)).unzip();
        NetworkTrace { hidden: hidden.into_iter().map(AnyTensor::three).collect(), attention, values }
    }
}
