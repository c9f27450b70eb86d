//! Nodes that round values to fixed grids.

use crate::graph::{Graph, Node, Operand, ValueId};
use crate::op::{Composite, FixedGrid, Op, Primitive};
use std::collections::BTreeMap;

/// Returns the graph with nodes that round the inputs of linear layers with these weights. Other nodes read the floats.
///
/// Layers that read one value have the same grid.
pub(super) fn with_rounded_layers(mut graph: Graph, grids: &BTreeMap<String, FixedGrid>) -> Graph {
    let mut found: BTreeMap<ValueId, (FixedGrid, Vec<usize>)> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let (Op::Composite(Composite::Linear), [Operand::Value(input), Operand::Weight(weight), ..]) =
            (&node.op, node.inputs.as_slice())
        else {
            continue;
        };
        if let Some(grid) = grids.get(&graph.weights[weight.0].name) {
            found.entry(*input).or_insert((*grid, Vec::new())).1.push(index);
        }
    }
    let nodes = found.into_iter().filter_map(|(value, (grid, readers))| rounded_for(&mut graph, value, grid, &readers));
    let mut new: Vec<(usize, Node)> = nodes.collect();
    new.sort_by_key(|(place, _)| *place);
    insert(&mut graph, new);
    graph
}

/// Gives nodes a rounded value. Returns the node that rounds it, and the place before which it belongs; `None` if there are no nodes.
pub(super) fn rounded_for(
    graph: &mut Graph,
    value: ValueId,
    grid: FixedGrid,
    readers: &[usize],
) -> Option<(usize, Node)> {
    let first = *readers.first()?;
    let rounded = ValueId(graph.values.len());
    let name = format!("{}.rounded", graph.values[value.0]);
    graph.values.push(name.clone());
    for &reader in readers {
        let values = graph.nodes[reader].inputs.iter_mut();
        values.filter(|input| **input == Operand::Value(value)).for_each(|input| *input = rounded.into());
    }
    let op = Op::Primitive(Primitive::FakeQuantize(grid));
    Some((first, Node { name, op, inputs: vec![Operand::Value(value)], outputs: vec![rounded] }))
}

/// Inserts nodes before others, in the same blocks.
pub(crate) fn insert(graph: &mut Graph, new: Vec<(usize, Node)>) {
    // The number of new nodes before each border between nodes; a block begins with the new nodes at its start.
    let before = |border: usize| new.iter().filter(|(place, _)| *place < border).count();
    for block in &mut graph.blocks {
        block.nodes = block.nodes.start + before(block.nodes.start)..block.nodes.end + before(block.nodes.end);
    }
    let mut new = new.into_iter().peekable();
    let mut nodes = Vec::with_capacity(graph.nodes.len() + new.len());
    for (index, node) in std::mem::take(&mut graph.nodes).into_iter().enumerate() {
        while let Some((_, node)) = new.next_if(|(place, _)| *place == index) {
            nodes.push(node);
        }
        nodes.push(node);
    }
    graph.nodes = nodes;
}
