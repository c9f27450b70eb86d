//! Tied weights, and embeddings that also serve as the head.

use crate::graph::{Graph, WeightId};
use crate::roles::operand_role;
use briquette_core::Role;
use std::collections::BTreeSet;

/// Weights that more than one node uses.
pub fn shared_weights(graph: &Graph) -> Vec<WeightId> {
    let mut n_uses = vec![0_usize; graph.weights.len()];
    for node in &graph.nodes {
        for (_, weight) in node.weights() {
            n_uses[weight.0] += 1;
        }
    }
    (0..n_uses.len()).filter(|&weight| n_uses[weight] > 1).map(WeightId).collect()
}

/// Embeddings that a linear layer multiplies by: rounding errors in them reach every output.
pub fn heads(graph: &Graph) -> BTreeSet<WeightId> {
    let used_as = |role: Role| -> BTreeSet<WeightId> {
        let uses = graph.nodes.iter().flat_map(|node| node.weights().map(move |(at, weight)| (&node.op, at, weight)));
        uses.filter(|(op, at, _)| operand_role(op, *at) == role).map(|(_, _, weight)| weight).collect()
    };
    used_as(Role::Embedding).intersection(&used_as(Role::Linear)).copied().collect()
}
