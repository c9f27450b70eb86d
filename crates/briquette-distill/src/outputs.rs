//! What a network gives for a batch, as far as losses look at it.

use briquette_core::{Error, Result};
use burn::tensor::{Bool, Tensor};

/// What a network gives for a batch. What it does not have, or was not asked for, stays empty.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// Class scores, `[n, classes]`.
    pub logits: Option<Tensor<2>>,
    /// Embeddings, `[n, width]`.
    pub embedding: Option<Tensor<2>>,
    /// The state after each layer, `[batch, length, width]`.
    pub hidden: Vec<Tensor<3>>,
    /// Attention of each layer, `[batch, heads, length, length]`.
    pub attention: Vec<Tensor<4>>,
    /// Values of each layer's attention, `[batch, length, width]`.
    pub values: Vec<Tensor<3>>,
    /// True where a token is none, `[batch, length]`.
    pub padding: Option<Tensor<2, Bool>>,
}

impl Outputs {
    /// Class scores alone, `[n, classes]`.
    pub fn of_logits(logits: Tensor<2>) -> Self {
        Self { logits: Some(logits), ..Self::default() }
    }

    /// Embeddings alone, `[n, width]`.
    pub fn of_embedding(embedding: Tensor<2>) -> Self {
        Self { embedding: Some(embedding), ..Self::default() }
    }

    /// With the state after each layer, `[batch, length, width]`.
    #[must_use]
    pub fn with_hidden(self, hidden: Vec<Tensor<3>>) -> Self {
        Self { hidden, ..self }
    }

    /// Class scores, `[n, classes]`, for a loss that cannot do without.
    ///
    /// # Errors
    /// Config where there are none.
    pub fn need_logits(&self) -> Result<Tensor<2>> {
        self.logits.clone().ok_or_else(|| Error::config("the network gives no class scores; choose another loss"))
    }

    /// Embeddings, `[n, width]`, for a loss that cannot do without.
    ///
    /// # Errors
    /// Config where there are none.
    pub fn need_embedding(&self) -> Result<Tensor<2>> {
        self.embedding.clone().ok_or_else(|| Error::config("the network gives no embeddings; choose another loss"))
    }
}

/// What of it the losses will look at: a network need not make the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The state after each layer.
    pub hidden: bool,
    /// Attention of each layer.
    pub attention: bool,
    /// Values of each layer's attention.
    pub values: bool,
}

impl Wanted {
    /// Whether only what comes out at the end is wanted.
    pub fn is_end_only(self) -> bool {
        self == Self::default()
    }

    /// What either asks for.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            hidden: self.hidden || other.hidden,
            attention: self.attention || other.attention,
            values: self.values || other.values,
        }
    }
}
