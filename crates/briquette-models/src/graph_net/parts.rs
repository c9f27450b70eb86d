//! Cuts a graph into the parts that run one after another, with the values between them.

use briquette_graph::blocks::outer_blocks;
use briquette_graph::op::{Composite, Op, Primitive};
use briquette_graph::{Graph, InputSource, Node, Operand, ValueId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Consecutive blocks of a graph.
///
/// Nodes between two blocks belong to the block before them, and layers before the first block to the first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BlockCuts {
    blocks: Vec<CutBlock>,
    /// The values before each block, and after the last; inputs that every run has are left out.
    states: Vec<Vec<ValueId>>,
}

/// A block of a cut graph.
#[derive(Debug, Clone, PartialEq)]
struct CutBlock {
    /// The common path of its tensors, where they have one.
    name: Option<String>,
    nodes: Range<usize>,
}

impl BlockCuts {
    /// Cuts a graph at its outermost blocks. Blocks that share weights are one, and so is a graph without blocks.
    ///
    /// `last` is the value after all blocks.
    pub(super) fn of(graph: &Graph, last: ValueId) -> Self {
        let mut blocks = blocks_without_shared_weights(graph);
        if blocks.is_empty() {
            blocks.push(CutBlock { name: None, nodes: 0..graph.nodes.len() });
        }
        // Layers before the first block, such as the stem of an image network, have inputs to observe.
        let before = &graph.nodes[..blocks[0].nodes.start];
        blocks[0].nodes.start = before.iter().position(multiplies).unwrap_or(before.len());
        for index in 1..blocks.len() {
            blocks[index - 1].nodes.end = blocks[index].nodes.start;
        }
        let end = blocks.last().map_or(0, |block| block.nodes.end);
        let needed = super::program::needed_nodes(graph, &[], &[last]);
        let cuts = blocks.iter().map(|block| block.nodes.start).chain([end]);
        let states = cuts.map(|cut| values_across(graph, &needed, cut, last)).collect();
        Self { blocks, states }
    }

    /// Returns one block of all nodes. Its input are images, or nothing if the graph takes no images.
    pub(super) fn whole(graph: &Graph, last: ValueId) -> Self {
        let nodes = 0..graph.nodes.len();
        let needed = super::program::needed_nodes(graph, &[], &[last]);
        let states = [0, nodes.end].map(|cut| values_across(graph, &needed, cut, last)).to_vec();
        Self { blocks: vec![CutBlock { name: None, nodes }], states }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn nodes(&self, block: usize) -> Range<usize> {
        self.blocks[block].nodes.clone()
    }

    /// Returns the values before a block; with the number of blocks, the values after the last.
    pub(super) fn state(&self, block: usize) -> &[ValueId] {
        &self.states[block]
    }

    /// Returns the common path of a block's tensors, where they have one.
    pub(super) fn name(&self, block: usize) -> Option<&str> {
        self.blocks[block].name.as_deref()
    }

    /// Returns the elements of the values before a block, and the elements that it computes, for example shapes.
    ///
    /// A convolution counts its patches, which probes and some devices copy. Patches of channel groups are cut small.
    pub(super) fn n_elements(&self, graph: &Graph, shapes: &[Vec<usize>], block: usize) -> [u64; 2] {
        let n = |value: &ValueId| n_elements(shapes, *value);
        let nodes = &graph.nodes[self.nodes(block)];
        let computed =
            nodes.iter().map(|node| node.outputs.iter().map(n).sum::<u64>() + patches(graph, shapes, node)).sum();
        [self.state(block).iter().map(n).sum(), computed]
    }
}

/// Returns the elements of a value in the example.
pub(super) fn n_elements(shapes: &[Vec<usize>], value: ValueId) -> u64 {
    shapes[value.0].iter().map(|extent| *extent as u64).product()
}

/// Returns the elements of a convolution's patches; 0 for other nodes, and for channel groups, whose patches are cut small.
pub(super) fn patches(graph: &Graph, shapes: &[Vec<usize>], node: &Node) -> u64 {
    match (&node.op, node.inputs.get(1)) {
        (Op::Primitive(Primitive::Conv(settings)), Some(Operand::Weight(weight))) if settings.groups == 1 => {
            let columns = graph.weights[weight.0].shape.0[1..].iter().map(|extent| *extent as u64).product::<u64>();
            let n_filters = shapes[node.outputs[0].0].get(1).map_or(1, |filters| *filters as u64);
            n_elements(shapes, node.outputs[0]) / n_filters.max(1) * columns
        }
        _ => 0,
    }
}

fn multiplies(node: &Node) -> bool {
    matches!(node.op, Op::Composite(Composite::Linear) | Op::Primitive(Primitive::Conv(_)))
}

/// Returns the outermost blocks, in order. Blocks with common weights become one, with all blocks between them.
fn blocks_without_shared_weights(graph: &Graph) -> Vec<CutBlock> {
    let weights = |nodes: &Range<usize>| -> BTreeSet<usize> {
        graph.nodes[nodes.clone()].iter().flat_map(|node| node.weights().map(|(_, weight)| weight.0)).collect()
    };
    let mut found: Vec<(CutBlock, BTreeSet<usize>)> = Vec::new();
    for block in outer_blocks(graph) {
        let own = weights(&block.nodes);
        match found.iter().position(|(_, known)| !known.is_disjoint(&own)) {
            None => found.push((CutBlock { name: Some(block.name.clone()), nodes: block.nodes.clone() }, own)),
            Some(first) => {
                let merged = found[first].0.nodes.start..block.nodes.end;
                found.truncate(first);
                let all = weights(&merged);
                found.push((CutBlock { name: None, nodes: merged }, all));
            }
        }
    }
    found.into_iter().map(|(block, _)| block).collect()
}

/// Returns the values that nodes before `cut` compute and that later nodes or the caller use.
///
/// Images and sounds count as computed: they are not given again after the first block.
fn values_across(graph: &Graph, needed: &[usize], cut: usize, last: ValueId) -> Vec<ValueId> {
    let (before, after): (Vec<usize>, Vec<usize>) = needed.iter().partition(|node| **node < cut);
    let is_read = |source: InputSource| matches!(source, InputSource::Images | InputSource::SoundFeatures);
    let images = graph.inputs.iter().filter(|input| is_read(input.source)).map(|input| input.value);
    let computed: BTreeSet<ValueId> =
        before.iter().flat_map(|&node| graph.nodes[node].outputs.iter().copied()).chain(images).collect();
    let used = after.iter().flat_map(|&node| graph.nodes[node].values().map(|(_, value)| value));
    let used: BTreeSet<ValueId> = used.chain([last]).collect();
    computed.intersection(&used).copied().collect()
}

#[cfg(test)]
mod tests {
    use crate::graph_net::GraphNet;
    use briquette_formats::Checkpoint;
    use burn::tensor::Device;

    fn net(name: &str) -> GraphNet {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        GraphNet::unfilled(&Checkpoint::open(&path).unwrap(), &Device::flex()).unwrap().0
    }

    #[test]
    fn the_values_between_blocks_are_all_that_later_nodes_use() {
        let n_values = |name: &str| {
            let net = net(name);
            let cuts = &net.outline.cuts;
            (0..=cuts.len()).map(|block| cuts.state(block).len()).collect::<Vec<_>>()
        };
        assert_eq!(n_values("families/bert"), [1, 1, 1]);
        // Relative positions are computed before the first block, for every block.
        assert_eq!(n_values("families/mpnet"), [2, 2, 1]);
        assert_eq!(n_values("families/vit"), [1, 1, 1]);
        assert_eq!(net("families/vit").outline.cuts.nodes(0).start, 0);
        let electra = net("families/electra");
        let first = &electra.graph().nodes[electra.outline.cuts.nodes(0).start];
        assert_eq!(first.name, "electra.embeddings_project");
        assert!(n_values("families/mobilenet_v2").iter().all(|n| *n == 1));
        // Layers of a dense block use all earlier layers.
        assert!(n_values("families/densenet").iter().any(|n| *n > 2));
        // Layers with the same weights are one block; so is a network without blocks, whose state are the images.
        assert_eq!(n_values("families/albert"), [1, 1]);
        assert_eq!(n_values("families/vgg"), [1, 1]);
    }
}
