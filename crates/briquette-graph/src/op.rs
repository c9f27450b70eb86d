//! Operations: primitives, and composites that expand to primitives.

mod attention;
mod fixed_grid;
mod frequencies;
mod function;
mod number;
mod recurrent;
mod routing;
mod window;

pub use attention::{Attention, Rotary, RotaryScaling};
pub use fixed_grid::FixedGrid;
pub use function::ElementFunction;
pub use number::NumberFunction;
pub use recurrent::{ReadingOrder, Recurrent, RecurrentCell};
pub use routing::Routing;
pub use window::{ConvSettings, PoolWindow, Reduction, same_zeros};

use serde::Serialize;

/// An operation of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Op {
    /// An operation with a shape rule and a coupling rule.
    Primitive(Primitive),
    /// An operation that expands to primitives.
    Composite(Composite),
}

/// Operations that have rules of their own. An ONNX graph consists of these.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Primitive {
    /// A function of each element, after broadcasting: activations, add, multiply, cast, where.
    Elementwise(ElementFunction),
    /// A function of each element and of vectors along one axis: `[x, vector, ..]`.
    PerChannel {
        /// The axis of `x` that the vectors run along.
        axis: usize,
    },
    /// `[.., m, k] · [.., k, n]`, with broadcast batch axes: `[a, b]`.
    MatMul {
        /// Whether `b` is stored as `[.., n, k]`.
        transpose_b: bool,
    },
    /// A convolution over the axes after the second: `[x, weight]` or `[x, weight, bias]`.
    Conv(ConvSettings),
    /// The same elements in another shape.
    Reshape(Vec<usize>),
    /// Axis `i` of the output is axis `permutation[i]` of the input.
    Transpose(Vec<usize>),
    /// Repeats axes of extent 1 up to this shape.
    Expand(Vec<usize>),
    /// Cuts an axis into consecutive parts, one output each.
    Split {
        /// The axis that is cut.
        axis: usize,
        /// The extent of each part.
        sizes: Vec<usize>,
    },
    /// A range of an axis.
    Slice {
        /// The axis that is cut.
        axis: usize,
        /// The first element.
        start: usize,
        /// The number of elements.
        len: usize,
    },
    /// Joins tensors along an axis.
    Concat {
        /// The axis that grows.
        axis: usize,
    },
    /// Rows of a table by index: `[table, indices]`.
    Gather,
    /// Mean, sum or maximum over axes, which keep an extent of 1.
    Reduce {
        /// The axes.
        axes: Vec<usize>,
        /// Mean, sum or maximum.
        kind: Reduction,
    },
    /// Product with a number.
    Scale(f64),
    /// A function of each element and a number.
    Number {
        /// The function.
        function: NumberFunction,
        /// The number.
        number: f64,
    },
    /// Rounds each element to a grid, `(clamp(round(x / scale) + zero) − zero) · scale`: a pair of `QuantizeLinear` and `DequantizeLinear`.
    FakeQuantize(FixedGrid),
    /// The sum of the elements of an axis up to each element.
    CumulativeSum {
        /// The axis.
        axis: usize,
    },
    /// The indices of the largest or smallest elements along an axis, as floats, in their order.
    TopIndices {
        /// The axis.
        axis: usize,
        /// How many.
        n: usize,
        /// Whether the largest elements come first; else the smallest.
        largest: bool,
        /// Whether the last of equal elements comes first.
        last_first: bool,
    },
    /// A window over the axes after the second.
    Pool(PoolWindow),
    /// An average over the axes after the second, down to these extents.
    AdaptivePool(Vec<usize>),
    /// Enlarges the axes after the second by a factor.
    Resize(usize),
    /// Zeros before and after each axis; one entry for each.
    Pad {
        /// Zeros before the first element.
        before: Vec<usize>,
        /// Zeros after the last element.
        after: Vec<usize>,
    },
    /// Zeros around the axes after the second, so that a window's outputs are the extents over its stride, rounded up.
    ///
    /// An odd zero is added at the end, as ONNX's `SAME_UPPER` and TensorFlow do.
    PadSame {
        /// Extents of the window.
        size: Vec<usize>,
        /// Step of the window.
        stride: Vec<usize>,
    },
    /// An operation that changes only the extents after the second axis, by its name in another format. It is not executed.
    Spatial {
        /// The operation's name where it comes from.
        name: String,
        /// The extents after the second axis.
        space: Vec<usize>,
    },
    /// Softmax along an axis.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// Shares of experts: softmax along the last axis, zero for all but the largest.
    Route(Routing),
    /// A recurrent layer.
    Recurrent(Recurrent),
    /// An operation without a rule. Shapes are given; all axes are fixed.
    Unknown {
        /// The operation's name where it comes from.
        name: String,
        /// The shape of each output.
        shapes: Vec<Vec<usize>>,
    },
}

/// Operations that expand to primitives.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Composite {
    /// `x · Wᵀ + b`: `[x, weight]` or `[x, weight, bias]`.
    Linear,
    /// Rows of a table by index: `[table, indices]`.
    Embedding,
    /// Layer norm over the last axis: `[x, weight]` or `[x, weight, bias]`.
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// Root-mean-square norm over the last axis: `[x, weight]`, `x / sqrt(mean(x²) + eps) · (weight + offset)`.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
        /// Added to the weight: 1 for Gemma, else 0.
        offset: f64,
    },
    /// Root-mean-square norm of each head: `[x, weight]`, `[batch, tokens, heads · width]` and `[width]`.
    HeadNorm {
        /// Heads.
        heads: usize,
        /// Added to the mean square.
        eps: f64,
        /// Added to the weight: 1 for Gemma, else 0.
        offset: f64,
    },
    /// Batch norm of the second axis: `[x, weight, bias, mean, variance]`.
    BatchNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// Group norm of the second axis: `[x, weight, bias]`.
    GroupNorm {
        /// Groups of channels.
        groups: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// Scaled dot-product attention of `[q, k, v]` or `[q, k, v, bias]`, the first three `[batch, tokens, heads · width]`.
    ///
    /// Keys and values of cross attention have a number of tokens of their own.
    /// The bias is `[heads, tokens, tokens]` or has a batch axis before; it is added to the scaled scores. Padding tokens are no part of
    /// the graph: a program that runs a batch of texts masks their keys.
    Attention(Attention),
    /// Cuts `[batch, tokens, heads · parts · width]` into `parts` outputs `[batch, tokens, heads · width]`: GPT-NeoX's fused projection.
    SplitHeads {
        /// Heads, the outer factor.
        heads: usize,
        /// Outputs.
        parts: usize,
    },
    /// `[batch, channels, height, width]` to `[batch, height · width, channels]`, row by row: patches as tokens.
    SpaceToTokens,
    /// Puts learned tokens before the tokens of each item: `[x, token, ..]`, tokens of shape `[1, n, width]`.
    PrependTokens,
    /// The token at an index: `[batch, tokens, width]` to `[batch, width]`.
    TakeToken(usize),
    /// `function(gate) · up`: SwiGLU, GEGLU; `[gate, up]`.
    Gate(ElementFunction),
    /// A gated feed-forward block for each expert, in shared tensors: `[x, logits, gate, up, down]`.
    ///
    /// `gate` and `up` are `[experts, inner, width]`, `down` is `[experts, width, inner]`.
    Experts {
        /// How shares follow from logits.
        routing: Routing,
        /// The function of the gate.
        function: ElementFunction,
    },
    /// The same with matrices of their own: `[x, logits, gate₀, up₀, down₀, gate₁, ..]`, all `[out, in]`.
    SeparateExperts {
        /// How shares follow from logits.
        routing: Routing,
        /// The function of the gate.
        function: ElementFunction,
    },
}

impl From<Primitive> for Op {
    fn from(primitive: Primitive) -> Self {
        Self::Primitive(primitive)
    }
}

impl From<Composite> for Op {
    fn from(composite: Composite) -> Self {
        Self::Composite(composite)
    }
}

impl Op {
    /// The operation's name, as reports print it.
    pub fn name(&self) -> &str {
        match self {
            Self::Primitive(primitive) => primitive.name(),
            Self::Composite(composite) => composite.name(),
        }
    }
}

impl Primitive {
    /// The operation's name, as reports print it.
    pub fn name(&self) -> &str {
        match self {
            Self::Elementwise(function) => function.name(),
            Self::PerChannel { .. } => "per-channel",
            Self::MatMul { .. } => "matmul",
            Self::Conv(settings) if settings.transposed => "transposed convolution",
            Self::Conv(_) => "convolution",
            Self::Reshape(_) => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Expand(_) => "expand",
            Self::Split { .. } => "split",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concatenate",
            Self::Gather => "gather",
            Self::Reduce { .. } => "reduce",
            Self::Scale(_) => "scale",
            Self::Number { function, .. } => function.name(),
            Self::FakeQuantize(_) => "fake-quantize",
            Self::CumulativeSum { .. } => "cumulative sum",
            Self::TopIndices { .. } => "top indices",
            Self::Pool(_) => "pool",
            Self::AdaptivePool(_) => "adaptive pool",
            Self::Resize(_) => "resize",
            Self::Pad { .. } | Self::PadSame { .. } => "pad",
            Self::Softmax { .. } => "softmax",
            Self::Route(_) => "route",
            Self::Recurrent(layer) => layer.name(),
            Self::Spatial { name, .. } | Self::Unknown { name, .. } => name,
        }
    }
}

impl Composite {
    /// The operation's name, as reports print it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Embedding => "embedding",
            Self::LayerNorm { .. } => "layer norm",
            Self::RmsNorm { .. } => "RMS norm",
            Self::HeadNorm { .. } => "head norm",
            Self::BatchNorm { .. } => "batch norm",
            Self::GroupNorm { .. } => "group norm",
            Self::Attention(_) => "attention",
            Self::SplitHeads { .. } => "split heads",
            Self::SpaceToTokens => "space to tokens",
            Self::PrependTokens => "prepend tokens",
            Self::TakeToken(_) => "take token",
            Self::Gate(_) => "gate",
            Self::Experts { .. } => "experts",
            Self::SeparateExperts { .. } => "separate experts",
        }
    }
}
