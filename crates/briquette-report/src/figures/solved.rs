//! How moving the weights of a layer went, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How moving the weights of a layer went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SolvedLayer {
    /// Input vectors that the calibration saw.
    pub n_vectors: u64,
    /// Whether those are fewer than 512: statistics of so few say little.
    pub is_few: bool,
    /// What was added to the diagonal of the Hessian, as a share of its mean.
    pub damping: f64,
    /// Whether that is more than the method asks for, as the Hessian had no Cholesky factor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_damped_more: bool,
    /// Inputs that were 0 throughout.
    pub n_dead: usize,
    /// Why weights were dropped by magnitude and rounded to nearest, where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// The square error of outputs over their square, had the same weights been dropped and rounded in place; over at most 256 outputs.
    pub outputs_unmoved: Option<f64>,
    /// The same of the weights that are written.
    pub outputs: Option<f64>,
}

impl SolvedLayer {
    /// The share of the square error of outputs that is left by moving weights.
    pub fn error_left(&self) -> Option<f64> {
        let left = self.outputs? / self.outputs_unmoved?;
        left.is_finite().then_some(left)
    }
}
