//! Recurrent layers.

use serde::Serialize;

/// A recurrent layer with ONNX's weights: `[x, w, r, bias, state]`, and the cell state of an LSTM.
///
/// | operand | shape |
/// |---|---|
/// | `x` | `[tokens, batch, inputs]` |
/// | `w`, `r` | `[directions, gates · width, inputs]`, `[directions, gates · width, width]` |
/// | `bias` | `[directions, 2 · gates · width]`: of `w`, then of `r` |
/// | `state`, cell state | `[directions, batch, width]` |
///
/// Outputs are the states of all tokens `[tokens, directions, batch, width]`, the last state, and the last cell state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Recurrent {
    /// How a state follows from the state before it.
    pub cell: RecurrentCell,
    /// The order in which tokens are read.
    pub order: ReadingOrder,
}

/// How a state follows from the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecurrentCell {
    /// `tanh(x Wᵀ + h Rᵀ + b)`.
    Rnn,
    /// Gates for update, reset and hidden state.
    Gru {
        /// Whether the reset gate multiplies `h Rᵀ + b`, and not `h`.
        resets_product: bool,
    },
    /// Gates for input, output, forgetting and cell state.
    Lstm,
}

/// The order in which a recurrent layer reads tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingOrder {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Backward,
    /// Both, in two directions with weights of their own.
    Both,
}

impl Recurrent {
    /// Returns the number of gates.
    pub fn n_gates(&self) -> usize {
        match self.cell {
            RecurrentCell::Rnn => 1,
            RecurrentCell::Gru { .. } => 3,
            RecurrentCell::Lstm => 4,
        }
    }

    /// Returns the number of directions.
    pub fn n_directions(&self) -> usize {
        if self.order == ReadingOrder::Both { 2 } else { 1 }
    }

    /// Returns whether each direction reads from the last token to the first.
    pub fn is_backward(&self) -> &'static [bool] {
        match self.order {
            ReadingOrder::Forward => &[false],
            ReadingOrder::Backward => &[true],
            ReadingOrder::Both => &[false, true],
        }
    }

    /// Returns the name of the layer in ONNX.
    pub fn name(&self) -> &'static str {
        match self.cell {
            RecurrentCell::Rnn => "RNN",
            RecurrentCell::Gru { .. } => "GRU",
            RecurrentCell::Lstm => "LSTM",
        }
    }
}
