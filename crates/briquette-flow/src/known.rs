//! What a tensor was taken for, and what shows it.

use briquette_core::{OutputAxis, Role};

/// What a tensor was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// What it is.
    pub role: Role,
    /// Which of its axes counts outputs.
    pub axis: OutputAxis,
    /// What shows it.
    pub why: Reason,
}

impl Known {
    /// A tensor whose rows lie in its own order.
    pub const fn new(role: Role, why: Reason) -> Self {
        Self { role, axis: OutputAxis::First, why }
    }

    /// Whether it is the `weight` of a plain linear layer that lies `[out, in]`: no experts, no `Conv1D`, no part of a larger module.
    pub fn is_plain_linear(&self) -> bool {
        self.role == Role::Linear && self.why.is_plain_linear()
    }
}

/// What shows the role of a tensor; in words as `inspect` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule of the recipe.
    Told,
    /// Its type is no weight.
    NoWeight,
    /// Rank 0 or 1, and nothing more is known.
    Vector,
    /// A segment of its name says norm.
    NormName,
    /// Running statistics lie beside it.
    RunningStatistics,
    /// A bias of its own shape lies beside it.
    BiasOfItsShape,
    /// Its last segment says bias.
    BiasName,
    /// A table of biases.
    BiasTable,
    /// A segment of its name says embedding, and no bias lies beside it.
    EmbeddingName,
    /// A bare parameter that the table of names has.
    BareParameter,
    /// All extents but one are 1.
    OneExtent,
    /// The lengths of a weight norm.
    WeightNormLengths,
    /// The directions of a weight norm.
    WeightNormDirections,
    /// It chooses experts.
    Router,
    /// A matrix called weight.
    Matrix,
    /// A matrix called weight, with a bias beside it as long as its first axis.
    MatrixWithBias,
    /// A matrix called weight, with a bias beside it as long as its last axis.
    TurnedByBias,
    /// The `Conv1D` of GPT-2 and its kin, by the family that config.json names.
    Conv1dOfFamily,
    /// The `Conv1D` of GPT-2 and its kin, by the biases of those beside it.
    Conv1dByBias,
    /// A matrix within a larger module: attention, LSTM, GRU.
    PartOfModule,
    /// Experts, `[experts, out, in]`.
    Experts,
    /// Experts, `[experts, in, out]`.
    TurnedExperts,
    /// Filters called weight.
    Filters,
    /// More than five extents.
    ManyExtents,
    /// No rule knows the name.
    NoRule,
    /// Experts whose shapes do not tell which axis counts outputs.
    ExpertsEitherWay,
}

impl Reason {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Told => "[[model.roles]] says so",
            Self::NoWeight => "its type is no weight",
            Self::Vector => "a vector or a single number",
            Self::NormName => "a norm by its name",
            Self::RunningStatistics => "running statistics beside it",
            Self::BiasOfItsShape => "a bias of its own shape beside it",
            Self::BiasName => "a bias by its name",
            Self::BiasTable => "a table of biases by its name",
            Self::EmbeddingName => "an embedding by its name, no bias beside it",
            Self::BareParameter => "a bare parameter by its name",
            Self::OneExtent => "all extents but one are 1",
            Self::WeightNormLengths => "lengths of a weight norm",
            Self::WeightNormDirections => "directions of a weight norm",
            Self::Router => "a router of experts",
            Self::Matrix => "a matrix called weight",
            Self::MatrixWithBias => "a matrix, its bias as long as its outputs",
            Self::TurnedByBias => "a matrix [in, out], its bias as long as its last axis",
            Self::Conv1dOfFamily => "a Conv1D of its family, [in, out]",
            Self::Conv1dByBias => "a Conv1D by the biases of its kind, [in, out]",
            Self::PartOfModule => "a matrix of a larger module by its name",
            Self::Experts => "experts, [experts, out, in]",
            Self::TurnedExperts => "experts that lie [experts, in, out]",
            Self::Filters => "filters called weight",
            Self::ManyExtents => "more than five extents",
            Self::NoRule => "no name that is known",
            Self::ExpertsEitherWay => "experts whose shapes do not tell inputs from outputs",
        }
    }

    /// Whether it is that of a linear layer's own `weight`, `[out, in]`.
    pub fn is_plain_linear(self) -> bool {
        matches!(self, Self::Matrix | Self::MatrixWithBias)
    }
}
