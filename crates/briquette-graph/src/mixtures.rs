//! Mixtures of experts whose tensors are stored one by one.

use crate::graph::{Graph, Node, Operand, WeightId};
use crate::op::{Composite, Op};

/// A router and its experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertMixture {
    /// The common path of the experts: expert 0 has tensors below `PATH.0`.
    pub path: String,
    /// Weights with a row for each expert: the router's.
    pub router: Vec<WeightId>,
    /// The gate, up and down matrices of each expert.
    pub experts: Vec<[WeightId; 3]>,
    /// The number of experts that run for each token.
    pub top_k: usize,
}

/// Returns the mixtures of a graph, in the order in which they run.
pub fn mixtures(graph: &Graph) -> Vec<ExpertMixture> {
    let of_node = |node: &Node| {
        let Op::Composite(Composite::SeparateExperts { routing, .. }) = &node.op else { return None };
        let logits = node.inputs.get(1)?;
        let is_router = |other: &&Node| other.outputs.iter().any(|value| Operand::from(*value) == *logits);
        let router = graph.nodes.iter().find(is_router)?.weights().map(|(_, weight)| weight).collect();
        let matrices: Vec<WeightId> = node.weights().map(|(_, weight)| weight).collect();
        let experts = matrices.as_chunks::<3>().0.to_vec();
        Some(ExpertMixture { path: node.name.clone(), router, experts, top_k: routing.top_k })
    };
    graph.nodes.iter().filter_map(of_node).collect()
}
