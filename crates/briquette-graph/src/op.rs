//! Operations: primitives, and composites that expand to primitives.

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
    Reduce(Vec<usize>),
    /// A window over the axes after the second.
    Pool(PoolWindow),
    /// An average over the axes after the second, down to these extents.
    AdaptivePool(Vec<usize>),
    /// Enlarges the axes after the second by a factor.
    Resize(usize),
    /// Softmax along an axis.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// Probabilities of experts: softmax along the last axis, zero for all but the `top_k` largest.
    Route {
        /// Experts that run for each token.
        top_k: usize,
    },
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
    /// Root-mean-square norm over the last axis: `[x, weight]`.
    RmsNorm {
        /// Added to the mean square.
        eps: f64,
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
    /// Scaled dot-product attention of `[q, k, v]` or `[q, k, v, bias]`, each `[batch, tokens, heads · width]`.
    Attention(Attention),
    /// `function(gate) · up`: SwiGLU, GEGLU; `[gate, up]`.
    Gate(ElementFunction),
    /// A gated feed-forward block for each expert, in shared tensors: `[x, logits, gate, up, down]`.
    ///
    /// `gate` and `up` are `[experts, inner, width]`, `down` is `[experts, width, inner]`.
    Experts {
        /// Experts that run for each token.
        top_k: usize,
        /// The function of the gate.
        function: ElementFunction,
    },
}

/// A function of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementFunction {
    /// Sum of the inputs.
    Add,
    /// Difference of two inputs.
    Sub,
    /// Product of the inputs.
    Mul,
    /// Product with a constant tensor that is no weight, such as a cosine.
    Constant,
    /// Sum with a mask that is no weight.
    Mask,
    /// `-x`.
    Neg,
    /// `x²`.
    Square,
    /// `1 / sqrt(x + eps)`.
    Rsqrt,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x · Φ(x)`.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish,
}

/// The settings of a convolution; each list has one entry for each axis of space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConvSettings {
    /// Step of the kernel.
    pub stride: Vec<usize>,
    /// Zeros on each side.
    pub padding: Vec<usize>,
    /// Distance of the kernel's elements.
    pub dilation: Vec<usize>,
    /// Groups of channels.
    pub groups: usize,
    /// Whether it is transposed: the weight is `[in, out / groups, ..]`.
    pub transposed: bool,
}

impl ConvSettings {
    /// A two-dimensional convolution of one group.
    pub fn square(stride: usize, padding: usize) -> Self {
        Self { stride: vec![stride; 2], padding: vec![padding; 2], dilation: vec![1; 2], groups: 1, transposed: false }
    }

    /// The same with groups.
    #[must_use]
    pub fn with_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }
}

/// A pooling window; each list has one entry for each axis of space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolWindow {
    /// Extents of the window.
    pub size: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Padding on each side.
    pub padding: Vec<usize>,
}

/// The settings of an attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Whether a token sees only tokens before it.
    pub causal: bool,
    /// Tokens that attention reaches back to; all where absent.
    pub window: Option<usize>,
    /// Rotary position embedding of queries and keys.
    pub rotary: Option<Rotary>,
}

impl Attention {
    /// Attention of all tokens to all tokens.
    pub fn full(heads: usize) -> Self {
        Self { heads, kv_heads: heads, causal: false, window: None, rotary: None }
    }
}

/// The settings of rotary position embeddings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// How long inputs stretch the frequencies.
    pub scaling: RotaryScaling,
}

/// How long inputs stretch rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryScaling {
    /// Not at all.
    None,
    /// Frequencies are divided by a factor.
    Linear(f64),
    /// Llama 3.1: long waves are divided by a factor, short ones are kept.
    Llama3 {
        /// Divides the longest waves.
        factor: f64,
        /// Where stretching begins.
        low: f64,
        /// Where stretching ends.
        high: f64,
        /// The length of the first training.
        original: f64,
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
            Self::Reduce(_) => "reduce",
            Self::Pool(_) => "pool",
            Self::AdaptivePool(_) => "adaptive pool",
            Self::Resize(_) => "resize",
            Self::Softmax { .. } => "softmax",
            Self::Route { .. } => "route",
            Self::Unknown { name, .. } => name,
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
            Self::BatchNorm { .. } => "batch norm",
            Self::GroupNorm { .. } => "group norm",
            Self::Attention(_) => "attention",
            Self::Gate(_) => "gate",
            Self::Experts { .. } => "experts",
        }
    }
}

impl ElementFunction {
    /// The function's name, as reports print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "subtract",
            Self::Mul => "multiply",
            Self::Constant => "multiply by constant",
            Self::Mask => "mask",
            Self::Neg => "negate",
            Self::Square => "square",
            Self::Rsqrt => "reciprocal square root",
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu-tanh",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::HardSwish => "hard-swish",
        }
    }
}
