//! What a tensor is in its network.

use crate::{OutputAxis, Patterns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tensor is in its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A matrix that multiplies activations, or one of each expert.
    Linear,
    /// A convolution's filters.
    Conv,
    /// A table that is looked up.
    Embedding,
    /// Scales and shifts of a normalisation.
    Norm,
    /// What is added, or anything else of rank 0 or 1.
    Bias,
    /// What is used as it stands: class tokens, tables of positions, states of a scan, routers.
    Parameter,
    /// Nothing shows what it is.
    Unknown,
    /// No weight at all.
    Other,
}

/// A role given by name.
#[derive(Debug, Clone)]
pub struct RoleRule {
    /// The tensors that have this role.
    pub patterns: Patterns,
    /// The role.
    pub role: Role,
    /// Which axis counts outputs, where the rule says it.
    pub axis: Option<OutputAxis>,
}

impl Role {
    /// Every role, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Linear,
        Self::Conv,
        Self::Embedding,
        Self::Norm,
        Self::Bias,
        Self::Parameter,
        Self::Unknown,
        Self::Other,
    ];

    /// The name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Conv => "conv",
            Self::Embedding => "embedding",
            Self::Norm => "norm",
            Self::Bias => "bias",
            Self::Parameter => "parameter",
            Self::Unknown => "unknown",
            Self::Other => "other",
        }
    }
}
