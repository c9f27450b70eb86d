//! Which step each tensor has for the sake of a budget, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Steps that lose the least while weight files keep to a budget, or keep a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocationReport {
    /// What they were found for, in words.
    pub target: String,
    /// How losses were found: gradient, measured, relative, or those of a file.
    pub how: String,
    /// What losses are counted in.
    pub unit: String,
    /// The most bytes that the weight files may have; none where the fewest were searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_bytes: Option<u64>,
    /// Whether every tensor has the choice that loses the least: more bytes would change nothing.
    #[serde(default)]
    pub is_finest: bool,
    /// Each tensor, in the order of the model.
    pub tensors: Vec<AllocatedTensor>,
}

/// The step of a tensor, and what is predicted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocatedTensor {
    /// Its name.
    pub name: String,
    /// Its scheme, which says the step.
    pub scheme: String,
    /// Its weights.
    pub n_weights: usize,
    /// Bytes of its codes and scales, as predicted.
    pub bytes: f64,
    /// What is lost by it, as predicted.
    pub loss: f64,
    /// What would be lost with all tensors at one step over their root mean square, some four bits: how sensitive it is.
    pub sensitivity: f64,
}

impl AllocatedTensor {
    /// Bits of each weight, as predicted.
    pub fn bits(&self) -> f64 {
        8.0 * self.bytes / self.n_weights.max(1) as f64
    }
}
