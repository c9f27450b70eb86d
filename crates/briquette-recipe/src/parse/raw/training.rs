//! What a training is asked for, as TOML has it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a student is pruned while it learns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawGradual {
    /// The share of weights that is dropped in the end, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// "layer" (the default), each tensor by itself, or "global", one threshold over all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// "cubic" (the default): fast at first, then slowly; "linear"; or "constant", all of it at the begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The share of the steps after which weights begin to go (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<f64>,
    /// The share of the steps after which no more go (0.5): what is left then learns on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<f64>,
    /// Steps between two decisions on what goes (10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// Globs over tensor names; all linear and conv ones when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// Globs over tensor names to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// What a student is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawStudent {
    /// "self" or "layers".
    Name(String),
    /// Other sizes of the model's config.json.
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

/// Which layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RawLayers {
    /// "every", "first" or "last".
    Name(String),
    /// These, from 0.
    List(Vec<usize>),
}

/// One thing that goes down. Which keys it may have depends on its kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawLoss {
    /// "logits", "labels", "hidden", "attention" or "embedding".
    pub kind: String,
    /// Its factor (1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// How outputs are compared. logits: "kl" (the default) or "js"; hidden: "mse" (the default) or "cosine"; attention:
    /// "maps" (the default) or "values"; embedding: "cosine" (the default) or "similarity".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// logits: what scores are divided by (4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// labels: the share spread over all classes (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<f32>,
    /// hidden, attention: the teacher's layer for each of the student's: "every" (the default), "first", "last" or a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<RawLayers>,
    /// attention by "values": parts that the width is cut into (12).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
}
