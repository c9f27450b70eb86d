//! Linear layers that multiply the same input, such as queries, keys and values.

use crate::blocks::outer_blocks;
use crate::graph::{Graph, Operand, WeightId};
use crate::op::{Composite, Op};
use std::collections::BTreeMap;

/// The weights of linear layers with the same input, a list for each group of two or more, in the order of nodes.
///
/// The layers of a group are in one block: all blocks of a decoder read the output of its encoder.
pub fn siblings(graph: &Graph) -> Vec<Vec<WeightId>> {
    let blocks = outer_blocks(graph);
    let mut found: BTreeMap<(Operand, Option<usize>), Vec<WeightId>> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let is_linear = node.op == Op::Composite(Composite::Linear);
        if let (true, Some(&input), Some(&Operand::Weight(weight))) =
            (is_linear, node.inputs.first(), node.inputs.get(1))
        {
            let block = blocks.iter().position(|block| block.nodes.contains(&index));
            found.entry((input, block)).or_default().push(weight);
        }
    }
    let mut groups: Vec<Vec<WeightId>> = found.into_values().filter(|group| group.len() > 1).collect();
    groups.sort();
    // Layers that share their weights have the same group several times.
    groups.dedup();
    groups
}
