//! Blocks that share weights, such as the layers of ALBERT.

use crate::graph::{Block, Graph, WeightId};
use std::collections::BTreeSet;

/// Returns the blocks of a graph, in the order of nodes, with neighbours that share weights as one block.
///
/// Each weight of a block then belongs to this block alone.
pub fn separate_blocks(graph: &Graph) -> Vec<Block> {
    let mut found: Vec<(Block, BTreeSet<WeightId>)> = Vec::new();
    for block in &graph.blocks {
        let nodes = &graph.nodes[block.nodes.clone()];
        let weights: BTreeSet<WeightId> = nodes.iter().flat_map(|node| node.weights().map(|(_, id)| id)).collect();
        match found.last_mut() {
            Some((last, known)) if !known.is_disjoint(&weights) => {
                last.nodes.end = block.nodes.end;
                known.extend(weights);
            }
            _ => found.push((block.clone(), weights)),
        }
    }
    found.into_iter().map(|(block, _)| block).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, Headers};
    use briquette_core::DType;
    use briquette_formats::TensorInfo;

    #[test]
    fn neighbours_that_share_a_weight_are_one_block() {
        let tensor = |name: &str| TensorInfo::checked(name.into(), DType::F32, vec![4, 4]).unwrap();
        let tensors = ["a.weight", "b.weight"].map(tensor);
        let headers = Headers::new(&tensors, None);
        let mut to = GraphBuilder::new("mlp", &headers);
        let mut x = to.input("x", &[1, 4]);
        for layer in ["a", "a", "b", "a"] {
            to.begin_block(layer);
            x = to.linear(layer, x).unwrap();
            to.end_block();
        }
        let graph = to.finish(&[x]);
        let found: Vec<_> = separate_blocks(&graph).into_iter().map(|block| (block.name, block.nodes)).collect();
        assert_eq!(found, [("a".into(), 0..2), ("b".into(), 2..3), ("a".into(), 3..4)]);
    }
}
