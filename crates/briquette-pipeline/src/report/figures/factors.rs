//! The factorized linear layers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a linear layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactorReport {
    /// The name of its weight.
    pub name: String,
    /// The original shape, `[out, in]`.
    pub shape: Vec<usize>,
    /// The rank of the factors; none if factors would not be smaller, so that the layer was kept.
    pub rank: Option<usize>,
    /// The kept share of the squared singular values.
    pub energy: f64,
}
