//! What a stage does otherwise with some tensors, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Other values for some tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawOverride {
    /// Globs over tensor names.
    pub include: Vec<String>,
    /// prune: their share of weights to drop, each by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// quantize: their scheme.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
}
