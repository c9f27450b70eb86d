//! What a network gives for a batch, as far as losses look at it.

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
}
