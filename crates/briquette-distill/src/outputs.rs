//! The outputs of a network for a batch that losses use.

use briquette_core::{Error, Result};
use burn::tensor::{Bool, Tensor};

/// The outputs of a network for a batch. Outputs that the network lacks or that were not requested stay empty.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// Logits, `[n, classes]`.
    pub logits: Option<Tensor<2>>,
    /// Embeddings, `[n, width]`.
    pub embedding: Option<Tensor<2>>,
    /// The hidden state after each layer, `[batch, length, width]`.
    pub hidden: Vec<Tensor<3>>,
    /// Attention probabilities of each layer, `[batch, heads, length, length]`.
    pub attention: Vec<Tensor<4>>,
    /// Attention values of each layer, `[batch, length, width]`.
    pub values: Vec<Tensor<3>>,
    /// True for padding tokens, `[batch, length]`.
    pub padding: Option<Tensor<2, Bool>>,
}

impl Outputs {
    /// Creates outputs with only logits, `[n, classes]`.
    pub fn of_logits(logits: Tensor<2>) -> Self {
        Self { logits: Some(logits), ..Self::default() }
    }

    /// Creates outputs with only embeddings, `[n, width]`.
    pub fn of_embedding(embedding: Tensor<2>) -> Self {
        Self { embedding: Some(embedding), ..Self::default() }
    }

    /// Adds the hidden state after each layer, `[batch, length, width]`.
    #[must_use]
    pub fn with_hidden(self, hidden: Vec<Tensor<3>>) -> Self {
        Self { hidden, ..self }
    }

    /// Returns the logits, `[n, classes]`, for a loss that requires them.
    ///
    /// # Errors
    /// Config: there are no logits.
    pub fn need_logits(&self) -> Result<Tensor<2>> {
        self.logits.clone().ok_or_else(|| Error::config("the network has no logits; use another loss"))
    }

    /// Returns the embeddings, `[n, width]`, for a loss that requires them.
    ///
    /// # Errors
    /// Config: there are no embeddings.
    pub fn need_embedding(&self) -> Result<Tensor<2>> {
        self.embedding.clone().ok_or_else(|| Error::config("the network has no embeddings; use another loss"))
    }
}

/// The outputs that losses request; a network need not compute the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The hidden state after each layer.
    pub hidden: bool,
    /// Attention probabilities of each layer.
    pub attention: bool,
    /// Attention values of each layer.
    pub values: bool,
}

impl Wanted {
    /// Returns whether only the final outputs are requested.
    pub fn is_end_only(self) -> bool {
        self == Self::default()
    }

    /// Returns the union of two requests.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            hidden: self.hidden || other.hidden,
            attention: self.attention || other.attention,
            values: self.values || other.values,
        }
    }
}
