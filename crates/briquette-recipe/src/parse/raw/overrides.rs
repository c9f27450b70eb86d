//! The TOML structure of an override.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Other values for some tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawOverride {
    /// Globs over tensor names.
    pub include: Vec<String>,
    /// prune: the sparsity of each of these tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// quantize: the scheme of these tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
}
