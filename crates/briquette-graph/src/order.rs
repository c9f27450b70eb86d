//! The order in which nodes can run. Finds cycles and values that nothing computes.

use crate::graph::{Graph, NodeId, Operand, ValueId};
use briquette_core::{Error, Result};

/// Returns the nodes so that each comes after the nodes it depends on.
///
/// # Errors
/// - Input: an index is out of range, or a value is computed twice or never.
/// - Input: nodes depend on each other in a cycle.
pub(crate) fn order(graph: &Graph) -> Result<Vec<NodeId>> {
    check_indices(graph)?;
    let producer = producers(graph)?;
    let mut is_done = vec![false; graph.nodes.len()];
    let mut order = Vec::with_capacity(graph.nodes.len());
    // Depth-first over the producers; a stack of its own, as graphs may be deep.
    let mut is_open = vec![false; graph.nodes.len()];
    for start in 0..graph.nodes.len() {
        let mut stack = vec![(start, false)];
        while let Some((node, is_after)) = stack.pop() {
            if is_after {
                is_open[node] = false;
                is_done[node] = true;
                order.push(NodeId(node));
                continue;
            }
            if is_done[node] {
                continue;
            }
            if is_open[node] {
                let message = "depends on its own output; remove the cycle";
                return Err(Error::input(message).at(place(graph, node)));
            }
            is_open[node] = true;
            stack.push((node, true));
            let sources = graph.nodes[node].values().filter_map(|(_, value)| producer[value.0]);
            stack.extend(sources.filter(|source| !is_done[*source]).map(|source| (source, false)));
        }
    }
    Ok(order)
}

/// Names a node in errors.
pub(crate) fn place(graph: &Graph, node: usize) -> String {
    let node = &graph.nodes[node];
    format!("node {:?} ({})", node.name, node.op.name())
}

fn check_indices(graph: &Graph) -> Result<()> {
    let is_value = |value: &ValueId| value.0 < graph.values.len();
    for (index, node) in graph.nodes.iter().enumerate() {
        let is_known = |operand: &Operand| match operand {
            Operand::Value(value) => is_value(value),
            Operand::Weight(weight) => weight.0 < graph.weights.len(),
        };
        if !node.inputs.iter().all(is_known) || !node.outputs.iter().all(is_value) {
            return Err(Error::input("uses a value or weight that the graph does not have").at(place(graph, index)));
        }
    }
    if !graph.outputs.iter().all(is_value) || !graph.inputs.iter().all(|input| is_value(&input.value)) {
        return Err(Error::input("an input or output of the graph is not among its values"));
    }
    match graph.blocks.iter().find(|block| block.nodes.start > block.nodes.end || block.nodes.end > graph.nodes.len()) {
        Some(block) => Err(Error::input("the block's nodes are not among those of the graph").at(&block.name)),
        None => Ok(()),
    }
}

/// The node that computes each value; none for inputs.
fn producers(graph: &Graph) -> Result<Vec<Option<usize>>> {
    let mut producer = vec![None; graph.values.len()];
    let mut is_input = vec![false; graph.values.len()];
    for input in &graph.inputs {
        is_input[input.value.0] = true;
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in &node.outputs {
            if is_input[value.0] || producer[value.0].replace(index).is_some() {
                let message = format!("computes {:?}, which has a value already", graph.values[value.0]);
                return Err(Error::input(message).at(place(graph, index)));
            }
        }
    }
    let has_none = |value: &ValueId| !is_input[value.0] && producer[value.0].is_none();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Some((_, value)) = node.values().find(|(_, value)| has_none(value)) {
            let message = format!("uses {:?}, which no node computes", graph.values[value.0]);
            return Err(Error::input(message).at(place(graph, index)));
        }
    }
    match graph.outputs.iter().find(|value| has_none(value)) {
        Some(value) => Err(Error::input("no node computes this output").at(&graph.values[value.0])),
        None => Ok(producer),
    }
}
