//! What a tensor is in its network, told by its rank and its name.
//!
//! | role | rank | name |
//! |---|---|---|
//! | embedding | 2 | a segment that is `wte`, `wpe` or `shared`, or contains `embed` |
//! | norm | any | a segment that contains `norm` or `layernorm`, or is `bn`, `ln` or either with a number |
//! | bias | 0 or 1 | anything else |
//! | linear | 2 | anything else |
//! | conv | 3 to 5 | anything else |
//! | other | | a type that is no weight, or a higher rank |

use briquette_core::pattern::Patterns;
use briquette_formats::TensorInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tensor is in its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A matrix that multiplies activations.
    Linear,
    /// A convolution's filters.
    Conv,
    /// A table that is looked up.
    Embedding,
    /// Scales and shifts of a normalisation.
    Norm,
    /// A vector that is added, or anything else of rank 0 or 1.
    Bias,
    /// No weight at all.
    Other,
}

/// A role given by name.
#[derive(Debug, Clone)]
pub struct RoleRule {
    /// Whose role.
    pub patterns: Patterns,
    /// Which.
    pub role: Role,
}

impl Role {
    /// Reads rank and name; the last rule that matches wins over both.
    pub fn of(tensor: &TensorInfo, rules: &[RoleRule]) -> Self {
        if !tensor.dtype.is_weight() {
            return Self::Other;
        }
        match rules.iter().rfind(|rule| rule.patterns.matches(&tensor.name)) {
            Some(rule) => rule.role,
            None => Self::by_name(&tensor.name, tensor.shape.rank()),
        }
    }

    fn by_name(name: &str, rank: usize) -> Self {
        let name = name.to_lowercase();
        let any = |is: fn(&str) -> bool| name.split('.').any(is);
        let is_norm = |segment: &str| {
            let stem = segment.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            segment.contains("norm") || stem == "bn" || stem == "ln"
        };
        let is_embedding = |segment: &str| segment.contains("embed") || ["wte", "wpe", "shared"].contains(&segment);
        match rank {
            2 if any(is_embedding) => Self::Embedding,
            _ if any(is_norm) => Self::Norm,
            0 | 1 => Self::Bias,
            2 => Self::Linear,
            3..=5 => Self::Conv,
            _ => Self::Other,
        }
    }

    /// The name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Conv => "conv",
            Self::Embedding => "embedding",
            Self::Norm => "norm",
            Self::Bias => "bias",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::DType;

    #[test]
    fn names_and_ranks_of_well_known_networks() {
        let cases = [
            ("embeddings.word_embeddings.weight", 2, Role::Embedding),
            ("embeddings.LayerNorm.weight", 1, Role::Norm),
            ("encoder.layer.0.attention.self.query.weight", 2, Role::Linear),
            ("encoder.layer.0.attention.self.query.bias", 1, Role::Bias),
            ("model.layers.0.input_layernorm.weight", 1, Role::Norm),
            ("model.embed_tokens.weight", 2, Role::Embedding),
            ("lm_head.weight", 2, Role::Linear),
            ("transformer.wte.weight", 2, Role::Embedding),
            ("transformer.h.0.ln_1.weight", 1, Role::Norm),
            ("layer1.0.bn2.running_mean", 1, Role::Norm),
            ("layer1.0.conv1.weight", 4, Role::Conv),
            ("fc.weight", 2, Role::Linear),
            ("logit_scale", 0, Role::Bias),
            ("x", 6, Role::Other),
        ];
        for (name, rank, expected) in cases {
            assert_eq!(Role::by_name(name, rank), expected, "{name}");
        }
    }

    #[test]
    fn a_rule_wins_over_the_name_but_not_over_the_type() {
        let rule = RoleRule { patterns: Patterns::new(["a.*"]).unwrap(), role: Role::Embedding };
        let tensor = |dtype| TensorInfo::checked("a.weight".into(), dtype, vec![2, 2]).unwrap();
        assert_eq!(Role::of(&tensor(DType::F32), std::slice::from_ref(&rule)), Role::Embedding);
        assert_eq!(Role::of(&tensor(DType::I64), &[rule]), Role::Other);
    }
}
