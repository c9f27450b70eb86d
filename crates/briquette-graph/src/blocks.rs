//! Outermost blocks, the values that cross the border of a block, and the contents of a block.

use crate::graph::{Block, Graph, ValueId, WeightId};
use std::collections::BTreeSet;

/// The values and weights of a range of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockBorder {
    /// Values that the block uses and does not compute.
    pub inputs: BTreeSet<ValueId>,
    /// Values that the block computes and that later nodes or the graph's outputs use.
    pub outputs: BTreeSet<ValueId>,
    /// Weights that its nodes use.
    pub weights: BTreeSet<WeightId>,
}

/// Finds what crosses the border of a block.
///
/// # Panics
/// If the block is not one of the graph's.
pub fn border(graph: &Graph, block: &Block) -> BlockBorder {
    let nodes = &graph.nodes[block.nodes.clone()];
    let computed: BTreeSet<ValueId> = nodes.iter().flat_map(|node| node.outputs.iter().copied()).collect();
    let used: BTreeSet<ValueId> = nodes.iter().flat_map(|node| node.values().map(|(_, value)| value)).collect();
    let others = graph.nodes.iter().enumerate().filter(|(index, _)| !block.nodes.contains(index));
    let used_outside = others.flat_map(|(_, node)| node.values().map(|(_, value)| value));
    let needed: BTreeSet<ValueId> = used_outside.chain(graph.outputs.iter().copied()).collect();
    BlockBorder {
        inputs: used.difference(&computed).copied().collect(),
        outputs: computed.intersection(&needed).copied().collect(),
        weights: nodes.iter().flat_map(|node| node.weights().map(|(_, weight)| weight)).collect(),
    }
}

/// Returns the blocks that are in no other block, without empty ones, in the order of nodes.
pub fn outer_blocks(graph: &Graph) -> Vec<&Block> {
    let mut blocks: Vec<&Block> = graph.blocks.iter().filter(|block| !block.nodes.is_empty()).collect();
    blocks.sort_by_key(|block| (block.nodes.start, std::cmp::Reverse(block.nodes.end)));
    let mut end = 0;
    blocks.retain(|block| {
        let is_outer = block.nodes.start >= end;
        end = end.max(block.nodes.end);
        is_outer
    });
    blocks
}
