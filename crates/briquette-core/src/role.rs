//! Roles of tensors in a network.

use crate::{OutputAxis, Patterns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The role of a tensor in its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A matrix that multiplies activations, or a stack with one matrix per expert.
    Linear,
    /// The filters of a convolution.
    Conv,
    /// A lookup table.
    Embedding,
    /// Scales and shifts of a normalization layer.
    Norm,
    /// An added vector, or any other tensor of rank 0 or 1.
    Bias,
    /// A tensor used directly: class tokens, position tables, scan states, routers.
    Parameter,
    /// The role could not be determined.
    Unknown,
    /// Not a weight.
    Other,
}

/// A rule that assigns a role by name.
#[derive(Debug, Clone)]
pub struct RoleRule {
    /// The tensors that have this role.
    pub patterns: Patterns,
    /// The role.
    pub role: Role,
    /// The axis that counts outputs, if the rule sets it.
    pub axis: Option<OutputAxis>,
}

impl Role {
    /// All roles, in the order of reports.
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

    /// Returns the name of the role.
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
