//! Which linear layers became two factors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of a linear layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactorReport {
    /// The name of its weight.
    pub name: String,
    /// The shape it had, `[out, in]`.
    pub shape: Vec<usize>,
    /// The rank of its factors; none where they would not have been smaller, and it was kept.
    pub rank: Option<usize>,
    /// The share of the squared singular values that is kept.
    pub energy: f64,
}
