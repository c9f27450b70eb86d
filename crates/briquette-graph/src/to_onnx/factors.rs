//! Layers of low rank as two linear layers.

use crate::fixed_values::insert;
use crate::graph::{Graph, Node, Operand, ValueId, Weight, WeightId};
use crate::op::{Composite, Op};
use briquette_formats::TensorInfo;
use std::collections::BTreeMap;

/// Returns the graph with two linear layers for each whose weight a checkpoint has as factors `X.down.weight` and `X.weight`.
#[must_use]
pub fn with_factors(mut graph: Graph, tensors: &[TensorInfo]) -> Graph {
    let downs = declare_factors(&mut graph, tensors);
    let (values, mut new) = (&mut graph.values, Vec::new());
    for (place, node) in graph.nodes.iter_mut().enumerate() {
        let is_linear = node.op == Op::Composite(Composite::Linear);
        let (true, Some(Operand::Weight(up))) = (is_linear, node.inputs.get(1).copied()) else { continue };
        let Some(&down) = downs.get(&up) else { continue };
        let (value, name) = (ValueId(values.len()), format!("{}.down", node.name));
        values.push(name.clone());
        let x = std::mem::replace(&mut node.inputs[0], value.into());
        new.push((place, Node { name, op: node.op.clone(), inputs: vec![x, down.into()], outputs: vec![value] }));
    }
    insert(&mut graph, new);
    graph
}

/// Gives the graph the factors that are applied first, and their products the shapes of the others.
fn declare_factors(graph: &mut Graph, tensors: &[TensorInfo]) -> BTreeMap<WeightId, WeightId> {
    let by_name: BTreeMap<&str, &TensorInfo> = tensors.iter().map(|info| (info.name.as_str(), info)).collect();
    let mut found = BTreeMap::new();
    for id in 0..graph.weights.len() {
        let weight = &graph.weights[id];
        let name = weight.name.strip_suffix(".weight").map(|path| format!("{path}.down.weight"));
        let Some(name) = name.filter(|name| graph.weight(name).is_none()) else { continue };
        let (Some(up), Some(down)) = (by_name.get(weight.name.as_str()), by_name.get(name.as_str())) else { continue };
        let (dtype, shape, layout) = (down.dtype, (*down.shape).clone(), weight.layout);
        graph.weights[id].shape = (*up.shape).clone();
        found.insert(WeightId(id), WeightId(graph.weights.len()));
        graph.weights.push(Weight { name, dtype, shape, layout, aliases: Vec::new(), is_buffer: false });
    }
    found
}
