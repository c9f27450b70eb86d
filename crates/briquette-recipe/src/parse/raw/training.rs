//! The TOML structure of training settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Gradual pruning of a student.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawGradual {
    /// The final share of weights to set to zero, from 0 to below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// "layer" (the default) prunes each tensor to the sparsity; "global" uses one threshold for all tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// How sparsity grows: "cubic" (the default), "linear" or "constant". "cubic" is fast at first, then slow;
    /// "constant" has the final sparsity from the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The share of steps after which pruning begins (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<f64>,
    /// The share of steps after which pruning ends (0.5); the remaining steps train the kept weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<f64>,
    /// Number of steps between two updates of the masks (10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// Globs over tensor names; all linear and conv tensors by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over the names of tensors to skip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// The student of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawStudent {
    /// "self" or "layers".
    Name(String),
    /// Overrides of sizes in the model's config.json.
    Sizes(BTreeMap<String, serde_json::Value>),
}

impl RawStudent {
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Sizes(sizes) => {
                let words: Vec<String> = sizes.iter().map(|(key, value)| format!("{key} {value}")).collect();
                format!("with {}", words.join(", "))
            }
        }
    }
}

/// A choice of layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawLayers {
    /// "every", "first" or "last".
    Name(String),
    /// The listed layers; they count from 0.
    List(Vec<usize>),
}

/// A loss to minimize. Its valid keys depend on its kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLoss {
    /// "logits", "labels", "hidden", "attention" or "embedding".
    pub kind: String,
    /// The weight of the loss (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The comparison. logits: "kl" (the default), "js", or "mse" (for a single score too); hidden: "mse" (the
    /// default) or "cosine"; attention: "maps" (attention probabilities, the default) or "values"; embedding:
    /// "cosine" (the default) or "similarity".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// logits by "kl" and "js": the temperature, by which logits are divided (4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// logits by "js": the weight β of the teacher in the mixture (0.5). 0 is "kl", 1 is the reverse divergence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta: Option<f32>,
    /// labels: the share of label smoothing (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<f32>,
    /// hidden, attention: the teacher layer for each student layer: "every" (the default, evenly spaced),
    /// "first", "last" or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<RawLayers>,
    /// attention by "values": number of heads that the width is split into (12).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
}
