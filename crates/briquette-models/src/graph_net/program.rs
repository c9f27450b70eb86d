//! Programs: the steps that compute some values of a graph from others.

use super::fuse;
use super::slots::ValueSlots;
use super::steps::{AttentionCall, ExpertsCall, FunctionalCall, GraphCall, GraphStep, StepInput};
use super::weights::LayerIndex;
use briquette_core::OutputAxis;
use briquette_graph::op::{Composite, Primitive};
use briquette_graph::{Graph, Node, Op, Operand, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Steps that compute the wanted values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GraphProgram {
    pub(super) steps: Vec<GraphStep>,
    /// Where each step's inputs and outputs are.
    pub(super) slots: ValueSlots,
    /// The constants that steps use, by the index of their weight.
    pub(super) constants: BTreeMap<usize, HeldConstant>,
}

/// The elements of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeldConstant {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

impl GraphProgram {
    /// Plans the steps from the values in `given` to the values in `wanted`, and fuses what one kernel computes.
    pub(super) fn new(
        graph: &Graph,
        shapes: &[Vec<usize>],
        layers: &LayerIndex,
        dropped: &BTreeSet<ValueId>,
        [given, wanted]: [&[ValueId]; 2],
    ) -> Self {
        let steps = steps(graph, shapes, layers, dropped, [given, wanted]);
        let slots = ValueSlots::of(&steps, given, wanted);
        Self::of(graph, steps, slots)
    }

    /// Plans the same steps, and frees each value after its last use: an observer takes the wanted values.
    pub(super) fn observed(
        graph: &Graph,
        shapes: &[Vec<usize>],
        layers: &LayerIndex,
        dropped: &BTreeSet<ValueId>,
        [given, wanted]: [&[ValueId]; 2],
    ) -> Self {
        let steps = steps(graph, shapes, layers, dropped, [given, wanted]);
        let slots = ValueSlots::of(&steps, given, &[]);
        Self::of(graph, steps, slots)
    }

    fn of(graph: &Graph, steps: Vec<GraphStep>, slots: ValueSlots) -> Self {
        let constants = held_constants(graph, &steps);
        Self { steps, slots, constants }
    }
}

/// Returns the fused steps that compute the wanted values.
fn steps(
    graph: &Graph,
    shapes: &[Vec<usize>],
    layers: &LayerIndex,
    dropped: &BTreeSet<ValueId>,
    [given, wanted]: [&[ValueId]; 2],
) -> Vec<GraphStep> {
    let needed = needed_nodes(graph, given, wanted);
    let attentions: Vec<usize> = (0..graph.nodes.len()).filter(|&node| is_attention(&graph.nodes[node])).collect();
    let step = |&index: &usize| {
        let node = &graph.nodes[index];
        let place = attentions.binary_search(&index).unwrap_or_default();
        match exact_call(index, node, graph, shapes, layers) {
            Some(call) => whole_step(call, node, layers),
            None => step(node, shapes, layers, place),
        }
    };
    let mut steps = fuse::fused(needed.iter().map(step).collect(), wanted);
    for step in &mut steps {
        step.drops = step.outputs.iter().any(|output| dropped.contains(output));
    }
    steps
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

/// Returns the constants that steps use.
fn held_constants(graph: &Graph, steps: &[GraphStep]) -> BTreeMap<usize, HeldConstant> {
    let inputs = steps.iter().flat_map(|step| &step.inputs);
    let held = inputs.filter_map(|input| match input {
        StepInput::Constant(at) => {
            let weight = &graph.weights[*at];
            let values = graph.constants.get(&weight.name)?.iter().map(|&value| value as f32).collect();
            Some((*at, HeldConstant { shape: weight.shape.0.clone(), values }))
        }
        _ => None,
    });
    held.collect()
}

/// Returns the call of a node of an ONNX model, if it takes all its weights as inputs or needs exact shapes.
fn exact_call(
    index: usize,
    node: &Node,
    graph: &Graph,
    shapes: &[Vec<usize>],
    layers: &LayerIndex,
) -> Option<GraphCall> {
    if !layers.is_exact() {
        return None;
    }
    let output = || shapes[node.outputs[0].0].clone();
    let call = match &node.op {
        Op::Primitive(Primitive::Reshape(_)) => FunctionalCall::Reshape(output()),
        Op::Primitive(Primitive::Expand(_)) => FunctionalCall::Expand(output()),
        Op::Primitive(Primitive::Gather) => FunctionalCall::Gather(output()),
        _ if !layers.is_functional(index) => return None,
        Op::Composite(Composite::Embedding) => FunctionalCall::Gather(output()),
        Op::Composite(Composite::Linear) => FunctionalCall::Linear { is_turned: is_turned(graph, node) },
        Op::Composite(Composite::LayerNorm { eps }) => FunctionalCall::LayerNorm(*eps),
        Op::Composite(Composite::RmsNorm { eps, .. }) => FunctionalCall::RmsNorm(*eps),
        Op::Composite(Composite::BatchNorm { eps }) => FunctionalCall::BatchNorm(*eps),
        Op::Composite(Composite::GroupNorm { groups, eps }) => FunctionalCall::GroupNorm { groups: *groups, eps: *eps },
        Op::Primitive(Primitive::Conv(settings)) => FunctionalCall::Conv(settings.clone()),
        _ => return None,
    };
    Some(GraphCall::Functional(call))
}

/// Returns whether the matrix of a linear layer is `[in, out]`.
fn is_turned(graph: &Graph, node: &Node) -> bool {
    matches!(node.inputs.get(1), Some(Operand::Weight(weight)) if graph.weights[weight.0].layout == OutputAxis::Last)
}

/// Returns a step whose inputs are all operands of a node.
fn whole_step(call: GraphCall, node: &Node, layers: &LayerIndex) -> GraphStep {
    let inputs = node.inputs.iter().map(|operand| step_input(operand, layers)).collect();
    GraphStep { call, inputs, outputs: node.outputs.clone(), drops: false }
}

fn step_input(operand: &Operand, layers: &LayerIndex) -> StepInput {
    match operand {
        Operand::Value(value) => StepInput::Value(*value),
        Operand::Weight(weight) if layers.is_constant(*weight) => StepInput::Constant(weight.0),
        Operand::Weight(_) => StepInput::Layer(layers.of_operand(operand)),
    }
}

/// Turns a node into a step.
fn step(node: &Node, shapes: &[Vec<usize>], layers: &LayerIndex, place: usize) -> GraphStep {
    let shape = |operand: &Operand| match operand {
        Operand::Value(value) => shapes[value.0].clone(),
        // Only composites and reshapes of families ask for shapes of weights.
        Operand::Weight(weight) if layers.is_constant(*weight) => Vec::new(),
        Operand::Weight(weight) => layers.shape(*weight).to_vec(),
    };
    let (call, n_inputs) = match &node.op {
        Op::Composite(composite) => composite_call(composite, node, layers, place, &shape),
        Op::Primitive(Primitive::Conv(_)) => (GraphCall::Conv(layers.of_operand(&node.inputs[1])), 1),
        Op::Primitive(primitive) => (primitive_call(primitive, &shape(&node.inputs[0])), node.inputs.len()),
    };
    // A layer holds the other operands.
    let skips_table = matches!(call, GraphCall::Embedding(_));
    let operands = if skips_table { &node.inputs[1..] } else { &node.inputs[..n_inputs] };
    let inputs = operands.iter().map(|operand| step_input(operand, layers)).collect();
    GraphStep { call, inputs, outputs: node.outputs.clone(), drops: false }
}

/// Returns the call of a composite, and how many of its inputs are no weights of the layer.
fn composite_call(
    composite: &Composite,
    node: &Node,
    layers: &LayerIndex,
    place: usize,
    shape: &dyn Fn(&Operand) -> Vec<usize>,
) -> (GraphCall, usize) {
    let layer = |input: usize| layers.of_operand(&node.inputs[input]);
    match composite {
        Composite::Linear if layers.is_table(&node.inputs[1]) => {
            let bias = node.inputs.get(2).map(|bias| layers.of_operand(bias));
            (GraphCall::Head(layer(1), bias), 1)
        }
        Composite::Linear => (GraphCall::Linear(layer(1)), 1),
        Composite::Embedding => (GraphCall::Embedding(layer(0)), 2),
        Composite::LayerNorm { .. } => (GraphCall::LayerNorm(layer(1)), 1),
        Composite::RmsNorm { offset, .. } => (GraphCall::RmsNorm { layer: layer(1), heads: 1, offset: *offset }, 1),
        Composite::HeadNorm { heads, offset, .. } => {
            (GraphCall::RmsNorm { layer: layer(1), heads: *heads, offset: *offset }, 1)
        }
        Composite::BatchNorm { .. } => (GraphCall::BatchNorm(layer(1)), 1),
        Composite::Attention(settings) => {
            let width = shape(&node.inputs[0]).last().copied().unwrap_or_default() / settings.heads.max(1);
            (GraphCall::Attention(AttentionCall { settings: settings.clone(), place, width }), node.inputs.len())
        }
        Composite::Gate(function) => (GraphCall::Gate(*function), 2),
        Composite::SeparateExperts { routing, function } => {
            let matrices = (2..node.inputs.len() - 2).step_by(3).map(|first| [0, 1, 2].map(|at| layer(first + at)));
            let call = ExpertsCall { matrices: matrices.collect(), routing: *routing, function: *function };
            (GraphCall::Experts(call), 2)
        }
        Composite::SplitHeads { heads, parts } => (GraphCall::SplitHeads { heads: *heads, parts: *parts }, 1),
        Composite::SpaceToTokens => (GraphCall::SpaceToTokens, 1),
        Composite::PrependTokens => (GraphCall::PrependTokens, node.inputs.len()),
        Composite::TakeToken(index) => (GraphCall::TakeToken(*index), 1),
        // The index of layers refuses graphs with these.
        Composite::GroupNorm { .. } | Composite::Experts { .. } => unreachable!("refused before"),
    }
}

fn primitive_call(primitive: &Primitive, from: &[usize]) -> GraphCall {
    let from = from.to_vec();
    match primitive {
        Primitive::Elementwise(function) => GraphCall::Function(*function),
        Primitive::Reshape(to) => GraphCall::Reshape { from, to: to.clone() },
        Primitive::Expand(to) => GraphCall::Expand { from, to: to.clone() },
        other => GraphCall::Primitive(other.clone()),
    }
}
