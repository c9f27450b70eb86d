//! The step sizes that a budget chose, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The choices with the least loss within a size budget, or within the bounds of metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocationReport {
    /// The target of the budget, as text.
    pub target: String,
    /// How losses were found: gradient, measured, relative, or from a file.
    pub how: String,
    /// The unit of losses.
    pub unit: String,
    /// The largest allowed bytes of the weight files; none if the smallest were searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_bytes: Option<u64>,
    /// Whether every tensor has the choice with the least loss, so that more bytes would not help.
    #[serde(default)]
    pub is_finest: bool,
    /// The tensors, in the order of the model.
    pub tensors: Vec<AllocatedTensor>,
}

/// The scheme of a tensor, and its predicted figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocatedTensor {
    /// The name.
    pub name: String,
    /// The scheme, with the step size.
    pub scheme: String,
    /// Number of weights.
    pub n_weights: usize,
    /// Predicted bytes of codes and scales.
    pub bytes: f64,
    /// Predicted loss.
    pub loss: f64,
    /// Predicted loss with a quarter of the root mean square as step size, about four bits: the sensitivity of
    /// the tensor.
    pub sensitivity: f64,
}

impl AllocatedTensor {
    /// Returns the predicted bits per weight.
    pub fn bits(&self) -> f64 {
        8.0 * self.bytes / self.n_weights.max(1) as f64
    }
}
