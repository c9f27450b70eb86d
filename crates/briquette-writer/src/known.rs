//! The role of a tensor, and the reason.

use briquette_core::{OutputAxis, Role};

/// The role of a tensor, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The role.
    pub role: Role,
    /// The axis of the layer's outputs.
    pub axis: OutputAxis,
    /// The reason for the role.
    pub why: Reason,
}

impl Known {
    /// Creates the role of a tensor with outputs on the first axis.
    pub const fn new(role: Role, why: Reason) -> Self {
        Self { role, axis: OutputAxis::First, why }
    }

    /// Returns whether this is the `weight` of a plain linear layer `[out, in]`.
    ///
    /// Experts, `Conv1D` and parts of a larger module are not.
    pub fn is_plain_linear(&self) -> bool {
        self.role == Role::Linear && self.why.is_plain_linear()
    }
}

/// The reason for the role of a tensor. [`words`](Self::words) is its text in `inspect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule of the recipe.
    Told,
    /// The layer of its module.
    Layer,
    /// A node of the network's graph uses it like this.
    Graph,
    /// The weight of a linear layer of the network's graph, in the layout of the checkpoint.
    LinearOfGraph,
    /// The weight of a layer of the network's graph, `[in, out, ..]`.
    TurnedInGraph,
    /// Its type is not a weight type.
    NoWeight,
    /// It has rank 0 or 1, and no other rule matches.
    Vector,
    /// A segment of its name contains norm.
    NormName,
    /// Running statistics exist beside the tensor.
    RunningStatistics,
    /// A bias of the same shape exists beside it.
    BiasOfItsShape,
    /// The last segment of its name contains bias.
    BiasName,
    /// A table of biases, by its name.
    BiasTable,
    /// A segment of its name contains embedding, and no bias exists beside it.
    EmbeddingName,
    /// A bare parameter, by its name.
    BareParameter,
    /// All extents except one are 1.
    OneExtent,
    /// The lengths of a weight norm.
    WeightNormLengths,
    /// The directions of a weight norm.
    WeightNormDirections,
    /// It is a router of experts.
    Router,
    /// A matrix named weight.
    Matrix,
    /// A matrix named weight, with a bias of the length of its first axis.
    MatrixWithBias,
    /// A matrix named weight, with a bias of the length of its last axis.
    TurnedByBias,
    /// The `Conv1D` of GPT-2 and related families, by `model_type` in config.json.
    Conv1dOfFamily,
    /// The `Conv1D` of GPT-2 and related families, by the biases of these layers.
    Conv1dByBias,
    /// A matrix in a larger module: attention, LSTM, GRU.
    PartOfModule,
    /// Experts, `[experts, out, in]`.
    Experts,
    /// Experts, `[experts, in, out]`.
    TurnedExperts,
    /// Filters named weight.
    Filters,
    /// Filters of a transposed convolution, with a bias of the length of their second axis.
    TransposedByBias,
    /// Filters of a transposed convolution, before a batch norm with the length of their second axis.
    TransposedByNorm,
    /// Filters of a transposed convolution, by the class in the file.
    TransposedByClass,
    /// Filters of a transposed convolution, by their name.
    TransposedByName,
    /// Filters of a transposed convolution with groups, so that no axis is the outputs.
    GroupedTransposed,
    /// It has more than five extents.
    ManyExtents,
    /// No rule matches the name.
    NoRule,
    /// Experts whose shapes do not show which axis is the outputs.
    ExpertsEitherWay,
}

impl Reason {
    /// Returns the text of the reason.
    pub fn words(self) -> &'static str {
        match self {
            Self::Told => "set in [[model.roles]]",
            Self::Layer => "its layer in the module",
            Self::Graph => "its use in the graph",
            Self::LinearOfGraph => "a linear layer of the graph",
            Self::TurnedInGraph => "[in, out, ..] in the graph",
            Self::NoWeight => "not a weight type",
            Self::Vector => "a vector or scalar",
            Self::NormName => "a norm by its name",
            Self::RunningStatistics => "running statistics beside it",
            Self::BiasOfItsShape => "a bias of the same shape beside it",
            Self::BiasName => "a bias by its name",
            Self::BiasTable => "a table of biases by its name",
            Self::EmbeddingName => "an embedding by its name, no bias beside it",
            Self::BareParameter => "a bare parameter by its name",
            Self::OneExtent => "all extents except one are 1",
            Self::WeightNormLengths => "lengths of a weight norm",
            Self::WeightNormDirections => "directions of a weight norm",
            Self::Router => "a router of experts",
            Self::Matrix => "a matrix named weight",
            Self::MatrixWithBias => "a matrix with a bias of the length of its outputs",
            Self::TurnedByBias => "a matrix [in, out] by the length of its bias",
            Self::Conv1dOfFamily => "a Conv1D [in, out] by its family",
            Self::Conv1dByBias => "a Conv1D [in, out] by its biases",
            Self::PartOfModule => "a matrix of a larger module by its name",
            Self::Experts => "experts, [experts, out, in]",
            Self::TurnedExperts => "experts, [experts, in, out]",
            Self::Filters => "filters named weight",
            Self::TransposedByBias => "filters [in, out, ..] by the length of their bias",
            Self::TransposedByNorm => "filters [in, out, ..] by the length of the next norm",
            Self::TransposedByClass => "filters [in, out, ..] by the class in the file",
            Self::TransposedByName => "filters [in, out, ..] by their name",
            Self::GroupedTransposed => "filters of a transposed convolution with groups",
            Self::ManyExtents => "more than five extents",
            Self::NoRule => "an unknown name",
            Self::ExpertsEitherWay => "experts without a known output axis",
        }
    }

    /// Returns whether this is the reason of a linear layer's own `weight`, `[out, in]`.
    pub fn is_plain_linear(self) -> bool {
        matches!(self, Self::Matrix | Self::MatrixWithBias | Self::LinearOfGraph)
    }
}
