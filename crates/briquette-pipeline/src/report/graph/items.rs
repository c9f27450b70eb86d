//! Nodes and primitives of a graph, with their bytes and multiply-adds.

use briquette_graph::multiply_adds::{multiply_adds, of_step};
use briquette_graph::words::words;
use briquette_graph::{Graph, Lowered, Op, Operand, ValueId};

/// A node, or a primitive that a node expands to.
#[derive(Debug)]
pub(super) struct GraphItem<'a> {
    pub(super) of_node: usize,
    pub(super) name: &'a str,
    pub(super) operation: String,
    pub(super) op: Op,
    pub(super) inputs: &'a [Operand],
    pub(super) outputs: &'a [ValueId],
    /// Bytes of the weights that no earlier item uses.
    pub(super) bytes: u64,
    pub(super) multiply_adds: u64,
}

/// Returns the nodes of a graph.
pub(super) fn of_nodes<'a>(graph: &'a Graph, lowered: &Lowered) -> Vec<GraphItem<'a>> {
    let mut bytes = FirstUses::of(graph);
    let item = |((of_node, node), multiply_adds): ((usize, &'a briquette_graph::Node), u64)| GraphItem {
        of_node,
        name: &node.name,
        operation: words(&node.op),
        op: node.op.clone(),
        inputs: &node.inputs,
        outputs: &node.outputs,
        bytes: bytes.take(&node.inputs),
        multiply_adds,
    };
    graph.nodes.iter().enumerate().zip(multiply_adds(graph, lowered)).map(item).collect()
}

/// Returns the primitives of a graph, in the order of nodes.
pub(super) fn of_primitives<'a>(graph: &Graph, lowered: &'a Lowered) -> Vec<GraphItem<'a>> {
    let mut bytes = FirstUses::of(graph);
    let mut steps: Vec<_> = lowered.steps.iter().collect();
    steps.sort_by_key(|step| step.origin);
    let item = |step: &'a briquette_graph::PrimitiveStep| {
        let op = Op::Primitive(step.node.op.clone());
        GraphItem {
            of_node: step.origin.0,
            name: &step.node.name,
            operation: words(&op),
            op,
            inputs: &step.node.inputs,
            outputs: &step.node.outputs,
            bytes: bytes.take(&step.node.inputs),
            multiply_adds: of_step(graph, lowered, step),
        }
    };
    steps.into_iter().map(item).collect()
}

/// Counts the bytes of each weight where it is used first, so that sums count tied weights once.
struct FirstUses<'a> {
    graph: &'a Graph,
    is_used: Vec<bool>,
}

impl<'a> FirstUses<'a> {
    fn of(graph: &'a Graph) -> Self {
        Self { graph, is_used: vec![false; graph.weights.len()] }
    }

    fn take(&mut self, inputs: &[Operand]) -> u64 {
        let mut bytes = 0_u64;
        for operand in inputs {
            if let Operand::Weight(weight) = operand
                && !std::mem::replace(&mut self.is_used[weight.0], true)
            {
                bytes = bytes.saturating_add(self.graph.weights[weight.0].n_bytes());
            }
        }
        bytes
    }
}
