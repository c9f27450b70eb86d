//! How the nodes of an ONNX model hold their weights: as layers, or as inputs of a function.

use briquette_core::OutputAxis;
use briquette_graph::op::{Composite, Primitive};
use briquette_graph::{Graph, Node, Op, Operand, WeightId};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes that take their weights as inputs, and the weights that the graph holds itself.
///
/// A node is a layer if a file stores its weights, and no other node uses them in another way. Exporters share equal tensors,
/// such as biases of zeros, between layers.
#[derive(Debug, Clone, Default)]
pub(super) struct ExactNodes {
    pub(super) functional: BTreeSet<usize>,
    pub(super) constants: BTreeSet<WeightId>,
}

impl ExactNodes {
    pub(super) fn of(graph: &Graph, shapes: &[Vec<usize>]) -> Self {
        let is_held = |weight: &briquette_graph::Weight| graph.constants.contains_key(&weight.name);
        let constants =
            graph.weights.iter().enumerate().filter(|(_, weight)| is_held(weight)).map(|(at, _)| WeightId(at));
        let mut found = Self { constants: constants.collect(), functional: BTreeSet::new() };
        let users = users(graph);
        let is_functional = |(index, node): (usize, &Node)| {
            let is_private = |weight| users[&weight].iter().all(|user| uses_alike(graph, node, index, *user, weight));
            let has_weights = || node.weights().all(|(_, weight)| !found.constants.contains(&weight));
            let is_layer = takes_weights(&node.op)
                && fits_layer(graph, shapes, node)
                && has_weights()
                && node.weights().all(|(_, weight)| is_private(weight));
            (takes_weights(&node.op) && !is_layer).then_some(index)
        };
        let functional = graph.nodes.iter().enumerate().filter_map(is_functional).collect();
        found.functional = functional;
        // A tied table is a layer only if its lookup is one.
        let tied: Vec<usize> =
            (0..graph.nodes.len()).filter(|&node| found.has_loose_table(graph, &users, node)).collect();
        found.functional.extend(tied);
        found
    }

    /// Returns whether a node shares its first weight with a node that takes it as an input.
    fn has_loose_table(&self, graph: &Graph, users: &BTreeMap<WeightId, Vec<usize>>, node: usize) -> bool {
        takes_weights(&graph.nodes[node].op)
            && graph.nodes[node]
                .weights()
                .any(|(_, weight)| users[&weight].iter().any(|user| self.functional.contains(user)))
    }
}

/// The nodes that use each weight.
fn users(graph: &Graph) -> BTreeMap<WeightId, Vec<usize>> {
    let mut found: BTreeMap<WeightId, Vec<usize>> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        node.weights().for_each(|(_, weight)| found.entry(weight).or_default().push(index));
    }
    found
}

/// Returns whether an operation has weights of its own, such as a linear layer.
fn takes_weights(op: &Op) -> bool {
    matches!(op, Op::Composite(_) | Op::Primitive(Primitive::Conv(_)))
}

/// Returns whether another node is the same layer, or the head that shares the table of a lookup before it.
fn uses_alike(graph: &Graph, node: &Node, index: usize, user: usize, weight: WeightId) -> bool {
    let other = &graph.nodes[user];
    let weights = |node: &Node| node.weights().collect::<Vec<_>>();
    if user == index || (other.op == node.op && weights(other) == weights(node)) {
        return true;
    }
    let is_lookup = |node: &Node| node.op == Op::Composite(Composite::Embedding);
    let is_head = |node: &Node| {
        node.op == Op::Composite(Composite::Linear)
            && node.inputs.get(1) == Some(&Operand::Weight(weight))
            && graph.weights[weight.0].layout == OutputAxis::First
    };
    (is_lookup(node) && is_head(other) && index < user) || (is_head(node) && is_lookup(other) && user < index)
}

/// Returns whether a layer of the network computes this node: it has weights of the usual ranks.
fn fits_layer(graph: &Graph, shapes: &[Vec<usize>], node: &Node) -> bool {
    let shape = |at: usize| match node.inputs.get(at) {
        Some(Operand::Weight(weight)) => Some(graph.weights[weight.0].shape.0.as_slice()),
        _ => None,
    };
    let given = |at: usize| match node.inputs.get(at) {
        Some(Operand::Value(value)) => Some(shapes[value.0].as_slice()),
        Some(Operand::Weight(_)) => None,
        None => Some(&[][..]),
    };
    let Some(kernel) = shape(1).or(shape(0)) else { return false };
    let others_are_weights = (2..node.inputs.len()).all(|at| shape(at).is_some_and(|shape| shape.len() == 1));
    match &node.op {
        Op::Composite(Composite::Embedding) => {
            shape(0).is_some_and(|table| table.len() == 2) && given(1).is_some_and(|ids| !ids.is_empty())
        }
        _ if given(0).is_none() || shape(1).is_none() || !others_are_weights => false,
        Op::Composite(Composite::Linear) => kernel.len() == 2,
        Op::Composite(Composite::LayerNorm { .. } | Composite::RmsNorm { .. }) => {
            kernel.len() == 1 && given(0).and_then(|x| x.last()) == kernel.first()
        }
        // The fused kernel of convolutions and norms takes images.
        Op::Composite(Composite::BatchNorm { .. }) => kernel.len() == 1 && given(0).is_some_and(|x| x.len() == 4),
        Op::Primitive(Primitive::Conv(settings)) => !settings.transposed && [3, 4].contains(&kernel.len()),
        _ => false,
    }
}
