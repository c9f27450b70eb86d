//! The result of a layer's weight update, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a layer's weight update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SolvedLayer {
    /// Number of input vectors in the calibration.
    pub n_vectors: u64,
    /// Whether there were fewer than 512 input vectors, which is unreliable.
    pub is_few: bool,
    /// Damping added to the diagonal of the Hessian, as a share of its mean.
    pub damping: f64,
    /// Whether damping was increased because the Cholesky factorization failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_damped_more: bool,
    /// Number of inputs that were always 0.
    pub n_dead: usize,
    /// Why weights were pruned by magnitude and rounded to nearest instead, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// Squared error of outputs over their square without the update of weights; over at most 256 outputs.
    pub outputs_unmoved: Option<f64>,
    /// The same error with the updated weights.
    pub outputs: Option<f64>,
    /// Squared error of the block's outputs after its rounding was learned, over the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_left: Option<f64>,
}

impl SolvedLayer {
    /// Returns the share of the squared output error that remains after the update.
    pub fn error_left(&self) -> Option<f64> {
        let left = self.outputs? / self.outputs_unmoved?;
        left.is_finite().then_some(left)
    }
}
