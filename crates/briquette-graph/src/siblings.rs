//! Linear layers that multiply the same input, such as queries, keys and values.

use crate::graph::{Graph, Operand, WeightId};
use crate::op::{Composite, Op};
use std::collections::BTreeMap;

/// The weights of linear layers with the same input, a list for each group of two or more, in the order of nodes.
pub fn siblings(graph: &Graph) -> Vec<Vec<WeightId>> {
    let mut found: BTreeMap<Operand, Vec<WeightId>> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Composite(Composite::Linear)) {
        if let (Some(&input), Some(&Operand::Weight(weight))) = (node.inputs.first(), node.inputs.get(1)) {
            found.entry(input).or_default().push(weight);
        }
    }
    let mut groups: Vec<Vec<WeightId>> = found.into_values().filter(|group| group.len() > 1).collect();
    groups.sort();
    // Layers that share their weights have the same group several times.
    groups.dedup();
    groups
}
