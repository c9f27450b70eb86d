//! The role found for a tensor, and the reason.

use briquette_core::{OutputAxis, Role};

/// The role found for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The role.
    pub role: Role,
    /// Which axis of the tensor counts outputs.
    pub axis: OutputAxis,
    /// Why it has this role.
    pub why: Reason,
}

impl Known {
    /// A tensor whose first axis counts outputs.
    pub const fn new(role: Role, why: Reason) -> Self {
        Self { role, axis: OutputAxis::First, why }
    }

    /// Whether this is the `weight` of a plain linear layer stored `[out, in]`: no experts, no `Conv1D`, no part of a larger module.
    pub fn is_plain_linear(&self) -> bool {
        self.role == Role::Linear && self.why.is_plain_linear()
    }
}

/// Why a tensor has its role; [`words`](Self::words) says it as `inspect` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule of the recipe says so.
    Told,
    /// The layer of a module that it belongs to.
    Layer,
    /// Its type is no weight.
    NoWeight,
    /// It has rank 0 or 1, and nothing more is known.
    Vector,
    /// A segment of its name says norm.
    NormName,
    /// Running statistics lie beside the tensor.
    RunningStatistics,
    /// A bias of the same shape lies beside it.
    BiasOfItsShape,
    /// Its last segment says bias.
    BiasName,
    /// A table of biases, by its name.
    BiasTable,
    /// A segment of its name says embedding, and no bias lies beside it.
    EmbeddingName,
    /// A bare parameter, by the table of names.
    BareParameter,
    /// All extents but one are 1.
    OneExtent,
    /// The lengths of a weight norm.
    WeightNormLengths,
    /// The directions of a weight norm.
    WeightNormDirections,
    /// It is a router, which chooses experts.
    Router,
    /// A matrix called weight.
    Matrix,
    /// A matrix called weight, with a bias beside it as long as its first axis.
    MatrixWithBias,
    /// A matrix called weight, with a bias beside it as long as its last axis.
    TurnedByBias,
    /// The `Conv1D` of GPT-2 and related families, by the family that config.json names.
    Conv1dOfFamily,
    /// The `Conv1D` of GPT-2 and related families, by the biases of such layers.
    Conv1dByBias,
    /// A matrix within a larger module: attention, LSTM, GRU.
    PartOfModule,
    /// Experts, `[experts, out, in]`.
    Experts,
    /// Experts, `[experts, in, out]`.
    TurnedExperts,
    /// Filters called weight.
    Filters,
    /// Filters of a transposed convolution, with a bias beside them as long as their second axis.
    TransposedByBias,
    /// Filters of a transposed convolution, before a batch norm of as many channels as their second axis.
    TransposedByNorm,
    /// Filters of a transposed convolution, by the class that the file names.
    TransposedByClass,
    /// Filters of a transposed convolution, by their name.
    TransposedByName,
    /// Filters of a transposed convolution with groups, so that no axis counts outputs.
    GroupedTransposed,
    /// It has more than five extents.
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
            Self::Layer => "its layer in the module",
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
            Self::TransposedByBias => "filters [in, out, ..], their bias as long as axis 1",
            Self::TransposedByNorm => "filters [in, out, ..], the next norm as long as axis 1",
            Self::TransposedByClass => "filters [in, out, ..] by the class in the file",
            Self::TransposedByName => "filters [in, out, ..] by their name",
            Self::GroupedTransposed => "filters of a transposed convolution with groups",
            Self::ManyExtents => "more than five extents",
            Self::NoRule => "no name that is known",
            Self::ExpertsEitherWay => "experts whose shapes do not tell inputs from outputs",
        }
    }

    /// Whether this is the reason of a linear layer's own `weight`, `[out, in]`.
    pub fn is_plain_linear(self) -> bool {
        matches!(self, Self::Matrix | Self::MatrixWithBias)
    }
}
