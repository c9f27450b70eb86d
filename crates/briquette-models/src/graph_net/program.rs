//! Programs: the steps that compute some values of a graph from others.

use super::fuse;
use super::weights::LayerIndex;
use briquette_graph::op::{Attention, Composite, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_graph::{Graph, Node, Op, Operand, ValueId};
use std::collections::BTreeSet;

/// The input of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Value(ValueId),
    /// The weight of a layer.
    Layer(usize),
}

/// An operation, with the layers that hold its weights.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Linear(usize),
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
    Function(ElementFunction),
    MatMul {
        transpose_b: bool,
    },
    Reshape {
        from: Vec<usize>,
        to: Vec<usize>,
    },
    Transpose(Vec<usize>),
    Expand {
        from: Vec<usize>,
        to: Vec<usize>,
    },
    Split {
        axis: usize,
        sizes: Vec<usize>,
    },
    Slice {
        axis: usize,
        start: usize,
        len: usize,
    },
    Concat {
        axis: usize,
    },
    SplitHeads {
        heads: usize,
        parts: usize,
    },
    SpaceToTokens,
    PrependTokens,
    TakeToken(usize),
    Scale(f64),
    Reduce {
        axes: Vec<usize>,
        kind: Reduction,
    },
    Pool(PoolWindow),
    AdaptivePool([usize; 2]),
    Softmax {
        axis: usize,
    },
    /// Query, key and value layers of one input, and their attention.
    SelfAttention([usize; 3], AttentionCall),
    /// Two linear layers with a function between them.
    FeedForward([usize; 2], ElementFunction),
    /// A layer norm of a sum.
    AddNorm(usize),
    /// A convolution, a batch norm, and possibly a shortcut and a ReLU.
    ConvNorm {
        conv: usize,
        norm: usize,
        then: AfterNorm,
    },
}

impl Call {
    /// Returns the layers that the step uses beside its inputs.
    pub(super) fn layers(&self) -> Vec<usize> {
        match self {
            Self::Linear(layer) | Self::Embedding(layer) | Self::LayerNorm(layer) => vec![*layer],
            Self::BatchNorm(layer) | Self::Conv(layer) | Self::AddNorm(layer) => vec![*layer],
            Self::RmsNorm { layer, .. } => vec![*layer],
            Self::Head(table, bias) => [*table].into_iter().chain(*bias).collect(),
            Self::SelfAttention(layers, _) => layers.to_vec(),
            Self::FeedForward(layers, _) => layers.to_vec(),
            Self::ConvNorm { conv, norm, .. } => vec![*conv, *norm],
            _ => Vec::new(),
        }
    }

    /// Returns the step's name, as reports print it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Linear(_) => "linear",
            Self::Head(..) => "tied head",
            Self::Embedding(_) => "embedding",
            Self::LayerNorm(_) => "layer norm",
            Self::RmsNorm { heads: 1, .. } => "RMS norm",
            Self::RmsNorm { .. } => "head norm",
            Self::BatchNorm(_) => "batch norm",
            Self::Conv(_) => "convolution",
            Self::Attention(_) => "attention",
            Self::Gate(_) => "gate",
            Self::Function(function) => function.name(),
            Self::MatMul { .. } => "matmul",
            Self::Reshape { .. } => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Expand { .. } => "expand",
            Self::Split { .. } => "split",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concatenate",
            Self::SplitHeads { .. } => "split heads",
            Self::SpaceToTokens => "space to tokens",
            Self::PrependTokens => "prepend tokens",
            Self::TakeToken(_) => "take token",
            Self::Scale(_) => "scale",
            Self::Reduce { .. } => "reduce",
            Self::Pool(_) => "pool",
            Self::AdaptivePool(_) => "adaptive pool",
            Self::Softmax { .. } => "softmax",
            Self::SelfAttention(..) => "self-attention (fused)",
            Self::FeedForward(..) => "feed-forward (fused)",
            Self::AddNorm(_) => "sum and layer norm (fused)",
            Self::ConvNorm { .. } => "convolution and batch norm (fused)",
        }
    }
}

/// What follows a batch norm in the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterNorm {
    Nothing,
    Relu,
    AddRelu,
}

/// An attention, and its place among the attentions of the graph, which finds its keys and values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttentionCall {
    pub(super) settings: Attention,
    pub(super) place: usize,
    /// Width of a head.
    pub(super) width: usize,
}

impl AttentionCall {
    /// Returns whether scores are `q kᵀ / √width`, which all kernels compute.
    pub(super) fn has_usual_scores(&self) -> bool {
        let usual = 1.0 / (self.width as f64).sqrt();
        self.settings.soft_cap.is_none() && self.settings.scale.is_none_or(|scale| (scale - usual).abs() <= 1e-12)
    }
}

/// A step of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) call: Call,
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<ValueId>,
    /// Values that no later step uses.
    pub(super) frees: Vec<ValueId>,
}

/// Steps that compute the wanted values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) wanted: Vec<ValueId>,
}

impl Program {
    /// Plans the steps from the values in `given` to the values in `wanted`, and fuses what one kernel computes.
    pub(super) fn new(
        graph: &Graph,
        shapes: &[Vec<usize>],
        layers: &LayerIndex,
        given: &[ValueId],
        wanted: &[ValueId],
    ) -> Self {
        let needed = needed_nodes(graph, given, wanted);
        let attentions: Vec<usize> = (0..graph.nodes.len()).filter(|&node| is_attention(&graph.nodes[node])).collect();
        let step = |&index: &usize| {
            let node = &graph.nodes[index];
            let place = attentions.binary_search(&index).unwrap_or_default();
            step(node, shapes, layers, place)
        };
        let steps = fuse::fused(needed.iter().map(step).collect(), wanted);
        let mut program = Self { steps, wanted: wanted.to_vec() };
        program.free_values();
        program
    }

    /// Frees each value after its last use.
    fn free_values(&mut self) {
        let mut later: BTreeSet<ValueId> = self.wanted.iter().copied().collect();
        for step in self.steps.iter_mut().rev() {
            let used = step.inputs.iter().filter_map(|source| match source {
                Source::Value(value) => Some(*value),
                Source::Layer(_) => None,
            });
            let all: BTreeSet<ValueId> = used.chain(step.outputs.iter().copied()).collect();
            step.frees = all.into_iter().filter(|value| later.insert(*value)).collect();
        }
    }
}

fn is_attention(node: &Node) -> bool {
    matches!(node.op, Op::Composite(Composite::Attention(_)))
}

/// Returns the nodes that the wanted values depend on, in order, without those before the given values.
pub(super) fn needed_nodes(graph: &Graph, given: &[ValueId], wanted: &[ValueId]) -> Vec<usize> {
    let mut open: BTreeSet<ValueId> = wanted.iter().copied().filter(|value| !given.contains(value)).collect();
    let mut nodes = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|output| open.contains(output)) {
            nodes.push(index);
            open.extend(node.values().map(|(_, value)| value).filter(|value| !given.contains(value)));
        }
    }
    nodes.reverse();
    nodes
}

/// Turns a node into a step.
fn step(node: &Node, shapes: &[Vec<usize>], layers: &LayerIndex, place: usize) -> Step {
    let shape = |operand: &Operand| match operand {
        Operand::Value(value) => shapes[value.0].clone(),
        Operand::Weight(weight) => layers.shape(*weight).to_vec(),
    };
    let (call, n_inputs) = match &node.op {
        Op::Composite(composite) => composite_call(composite, node, layers, place, &shape),
        Op::Primitive(Primitive::Conv(_)) => (Call::Conv(layers.of_operand(&node.inputs[1])), 1),
        Op::Primitive(primitive) => (primitive_call(primitive, &shape(&node.inputs[0])), node.inputs.len()),
    };
    // A layer holds the other operands.
    let skips_table = matches!(call, Call::Embedding(_));
    let operands = if skips_table { &node.inputs[1..] } else { &node.inputs[..n_inputs] };
    let source = |operand: &Operand| match operand {
        Operand::Value(value) => Source::Value(*value),
        Operand::Weight(_) => Source::Layer(layers.of_operand(operand)),
    };
    Step { call, inputs: operands.iter().map(source).collect(), outputs: node.outputs.clone(), frees: Vec::new() }
}

/// Returns the call of a composite, and how many of its inputs are no weights of the layer.
fn composite_call(
    composite: &Composite,
    node: &Node,
    layers: &LayerIndex,
    place: usize,
    shape: &dyn Fn(&Operand) -> Vec<usize>,
) -> (Call, usize) {
    let layer = |input: usize| layers.of_operand(&node.inputs[input]);
    match composite {
        Composite::Linear if layers.is_table(&node.inputs[1]) => {
            let bias = node.inputs.get(2).map(|bias| layers.of_operand(bias));
            (Call::Head(layer(1), bias), 1)
        }
        Composite::Linear => (Call::Linear(layer(1)), 1),
        Composite::Embedding => (Call::Embedding(layer(0)), 2),
        Composite::LayerNorm { .. } => (Call::LayerNorm(layer(1)), 1),
        Composite::RmsNorm { offset, .. } => (Call::RmsNorm { layer: layer(1), heads: 1, offset: *offset }, 1),
        Composite::HeadNorm { heads, offset, .. } => {
            (Call::RmsNorm { layer: layer(1), heads: *heads, offset: *offset }, 1)
        }
        Composite::BatchNorm { .. } => (Call::BatchNorm(layer(1)), 1),
        Composite::Attention(settings) => {
            let width = shape(&node.inputs[0]).last().copied().unwrap_or_default() / settings.heads.max(1);
            (Call::Attention(AttentionCall { settings: settings.clone(), place, width }), node.inputs.len())
        }
        Composite::Gate(function) => (Call::Gate(*function), 2),
        Composite::SplitHeads { heads, parts } => (Call::SplitHeads { heads: *heads, parts: *parts }, 1),
        Composite::SpaceToTokens => (Call::SpaceToTokens, 1),
        Composite::PrependTokens => (Call::PrependTokens, node.inputs.len()),
        Composite::TakeToken(index) => (Call::TakeToken(*index), 1),
        // The index of layers refuses graphs with these.
        Composite::GroupNorm { .. } | Composite::Experts { .. } => unreachable!("refused before"),
    }
}

fn primitive_call(primitive: &Primitive, from: &[usize]) -> Call {
    let from = from.to_vec();
    match primitive {
        Primitive::Elementwise(function) => Call::Function(*function),
        Primitive::MatMul { transpose_b } => Call::MatMul { transpose_b: *transpose_b },
        Primitive::Reshape(to) => Call::Reshape { from, to: to.clone() },
        Primitive::Transpose(permutation) => Call::Transpose(permutation.clone()),
        Primitive::Expand(to) => Call::Expand { from, to: to.clone() },
        Primitive::Split { axis, sizes } => Call::Split { axis: *axis, sizes: sizes.clone() },
        Primitive::Slice { axis, start, len } => Call::Slice { axis: *axis, start: *start, len: *len },
        Primitive::Concat { axis } => Call::Concat { axis: *axis },
        Primitive::Scale(factor) => Call::Scale(*factor),
        Primitive::Reduce { axes, kind } => Call::Reduce { axes: axes.clone(), kind: *kind },
        Primitive::Pool(window) => Call::Pool(window.clone()),
        Primitive::AdaptivePool(size) => Call::AdaptivePool([size[0], size[1]]),
        Primitive::Softmax { axis } => Call::Softmax { axis: *axis },
        // The index of layers refuses graphs with these.
        _ => unreachable!("refused before"),
    }
}
