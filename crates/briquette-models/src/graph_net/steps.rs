//! Steps of a program: operations with the layers that hold their weights.

use super::fixed::{FixedCall, FixedKind};
use briquette_cpu::OutputBounds;
use briquette_graph::ValueId;
use briquette_graph::op::{Attention, ConvSettings, ElementFunction, Primitive, Routing};
use briquette_ops::compressed::CodeGrid;

/// The input of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepInput {
    Value(ValueId),
    /// The weight of a layer.
    Layer(usize),
    /// A constant that the graph holds, by the index of its weight.
    Constant(usize),
}

/// An operation, with the layers that hold its weights.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum GraphCall {
    Linear(usize),
    /// Linear layers of one input, with an output each.
    Linears(Vec<usize>),
    /// An embedding table as the head, and the layer of its bias.
    Head(usize, Option<usize>),
    Embedding(usize),
    LayerNorm(usize),
    /// A norm of each of several heads, and the number that is added to its weight.
    RmsNorm {
        layer: usize,
        heads: usize,
        offset: f64,
    },
    BatchNorm(usize),
    Conv(usize),
    Attention(AttentionCall),
    Gate(ElementFunction),
    Experts(ExpertsCall),
    Function(ElementFunction),
    /// A primitive without weights that needs no shapes of examples.
    Primitive(Primitive),
    Reshape {
        from: Vec<usize>,
        to: Vec<usize>,
    },
    Expand {
        from: Vec<usize>,
        to: Vec<usize>,
    },
    /// A layer whose weights are inputs of the step.
    Functional(FunctionalCall),
    SplitHeads {
        heads: usize,
        parts: usize,
    },
    SpaceToTokens,
    PrependTokens,
    TakeToken(usize),
    /// Query, key and value layers of one input, and their attention.
    SelfAttention(SelfAttentionCall),
    /// Two linear layers with a function between them.
    FeedForward([usize; 2], ElementFunction),
    /// A layer norm of a sum.
    AddNorm(usize),
    /// An operation whose output is rounded to a grid.
    Fixed(FixedCall),
    /// A convolution and the operations after it.
    ConvThen(ConvThenCall),
}

impl GraphCall {
    /// Returns the layers that the step uses beside its inputs.
    pub(super) fn layers(&self) -> Vec<usize> {
        match self {
            Self::Linear(layer) | Self::Embedding(layer) | Self::LayerNorm(layer) => vec![*layer],
            Self::BatchNorm(layer) | Self::Conv(layer) | Self::AddNorm(layer) => vec![*layer],
            Self::RmsNorm { layer, .. } => vec![*layer],
            Self::Head(table, bias) => [*table].into_iter().chain(*bias).collect(),
            Self::Experts(experts) => experts.matrices.iter().flatten().copied().collect(),
            Self::SelfAttention(call) => call.layers.to_vec(),
            Self::FeedForward(layers, _) => layers.to_vec(),
            Self::Linears(layers) => layers.clone(),
            Self::ConvThen(call) => [call.conv].into_iter().chain(call.norm).collect(),
            Self::Fixed(FixedCall { kind: FixedKind::Conv { layer, norm, .. }, .. }) => {
                [*layer].into_iter().chain(*norm).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether the step has linear layers or convolutions, which probes observe.
    pub(super) fn multiplies(&self) -> bool {
        matches!(
            self,
            Self::Linear(_)
                | Self::Linears(_)
                | Self::FeedForward(..)
                | Self::SelfAttention(..)
                | Self::Conv(_)
                | Self::ConvThen(_)
                | Self::Fixed(FixedCall { kind: FixedKind::Conv { .. }, .. })
                | Self::Experts(_)
        )
    }

    /// Returns the step's name, as reports print it.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Linear(_) | Self::Linears(_) => "linear",
            Self::Head(..) => "tied head",
            Self::Embedding(_) => "embedding",
            Self::LayerNorm(_) => "layer norm",
            Self::RmsNorm { heads: 1, .. } => "RMS norm",
            Self::RmsNorm { .. } => "head norm",
            Self::BatchNorm(_) => "batch norm",
            Self::Conv(_) => "convolution",
            Self::Attention(_) => "attention",
            Self::Gate(_) => "gate",
            Self::Experts(_) => "experts",
            Self::Function(function) => function.name(),
            Self::Primitive(primitive) => primitive.name(),
            Self::Reshape { .. } => "reshape",
            Self::Expand { .. } => "expand",
            Self::Functional(call) => call.name(),
            Self::SplitHeads { .. } => "split heads",
            Self::SpaceToTokens => "space to tokens",
            Self::PrependTokens => "prepend tokens",
            Self::TakeToken(_) => "take token",
            Self::SelfAttention(..) => "self-attention (fused)",
            Self::FeedForward(..) => "feed-forward (fused)",
            Self::AddNorm(_) => "sum and layer norm (fused)",
            Self::ConvThen(ConvThenCall { norm: Some(_), .. }) => "convolution and batch norm (fused)",
            Self::ConvThen(call) if call.is_open() && !call.has_bias => "convolution",
            Self::ConvThen(_) => "convolution (fused)",
            Self::Fixed(call) => call.kind.name(),
        }
    }
}

/// An operation for inputs of known shapes, which takes its weights as inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FunctionalCall {
    /// `[x, weight]` or `[x, weight, bias]`; the weight is `[in, out]` if `is_turned`.
    Linear {
        is_turned: bool,
    },
    LayerNorm(f64),
    RmsNorm(f64),
    /// `[x, weight, bias, mean, variance]`.
    BatchNorm(f64),
    GroupNorm {
        groups: usize,
        eps: f64,
    },
    Conv(ConvSettings),
    /// A lookup with an output of this shape.
    Gather(Vec<usize>),
    /// A reshape to exactly this shape.
    Reshape(Vec<usize>),
    /// An expansion to exactly this shape.
    Expand(Vec<usize>),
}

impl FunctionalCall {
    fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::LayerNorm(_) => "layer norm",
            Self::RmsNorm(_) => "RMS norm",
            Self::BatchNorm(_) => "batch norm",
            Self::GroupNorm { .. } => "group norm",
            Self::Conv(_) => "convolution",
            Self::Gather(_) => "gather",
            Self::Reshape(_) => "reshape",
            Self::Expand(_) => "expand",
        }
    }
}

/// A convolution and the operations after it: a bias or a batch norm, a sum, then ReLU or ReLU6.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConvThenCall {
    pub(super) conv: usize,
    /// The batch norm.
    pub(super) norm: Option<usize>,
    /// Whether the second input is a bias.
    pub(super) has_bias: bool,
    /// Whether the last input is a shortcut to add.
    pub(super) has_shortcut: bool,
    pub(super) bounds: OutputBounds,
    /// The convolutions that read the output, if nothing else does.
    pub(super) readers: Vec<usize>,
}

impl ConvThenCall {
    /// Returns a convolution and possibly a batch norm.
    pub(super) fn new(conv: usize, norm: Option<usize>) -> Self {
        let (has_bias, has_shortcut, bounds) = (false, false, OutputBounds::None);
        Self { conv, norm, has_bias, has_shortcut, bounds, readers: Vec::new() }
    }

    /// Returns whether nothing follows but a bias or a batch norm.
    pub(super) fn is_open(&self) -> bool {
        !self.has_shortcut && self.bounds == OutputBounds::None
    }
}

/// An attention, and its place among the attentions of the graph, which finds its keys and values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttentionCall {
    pub(super) settings: Attention,
    pub(super) place: usize,
    /// Width of a head.
    pub(super) width: usize,
}

/// Attention among the tokens of one input.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SelfAttentionCall {
    /// The layers of queries, keys and values.
    pub(super) layers: [usize; 3],
    /// The grids to which queries, keys and values are rounded, if they are.
    pub(super) grids: Option<[CodeGrid; 3]>,
    pub(super) attention: AttentionCall,
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExpertsCall {
    /// The layers of gate, up and down of each expert.
    pub(super) matrices: Vec<[usize; 3]>,
    pub(super) routing: Routing,
    /// The function of gates.
    pub(super) function: ElementFunction,
}

impl GraphStep {
    /// Returns the layers that the step uses, with parameters among its inputs.
    pub(super) fn layers(&self) -> Vec<usize> {
        let parameters = self.inputs.iter().filter_map(|input| match input {
            StepInput::Layer(layer) => Some(*layer),
            StepInput::Value(_) | StepInput::Constant(_) => None,
        });
        self.call.layers().into_iter().chain(parameters).collect()
    }
}

/// A step of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GraphStep {
    pub(super) call: GraphCall,
    pub(super) inputs: Vec<StepInput>,
    pub(super) outputs: Vec<ValueId>,
    /// Whether dropout applies to the outputs during training.
    pub(super) drops: bool,
}
