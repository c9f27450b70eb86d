//! Removes nodes whose outputs nothing uses.

use crate::graph::{Graph, ValueId};

/// Removes nodes that no output depends on, and weights that no node uses. Values are kept.
pub(super) fn remove_unused(graph: &mut Graph) {
    let mut is_used = vec![false; graph.values.len()];
    let mut mark = |value: ValueId| is_used[value.0] = true;
    graph.outputs.iter().for_each(|output| mark(*output));
    let mut is_kept = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        is_kept[index] = node.outputs.iter().any(|value| is_used[value.0]);
        if is_kept[index] {
            node.values().for_each(|(_, value)| is_used[value.0] = true);
        }
    }
    let mut is_kept = is_kept.into_iter();
    graph.nodes.retain(|_| is_kept.next().unwrap_or(true));
    remove_weights(graph);
}

fn remove_weights(graph: &mut Graph) {
    let mut places = vec![None; graph.weights.len()];
    graph.nodes.iter().flat_map(|node| node.weights()).for_each(|(_, weight)| places[weight.0] = Some(weight));
    places.iter_mut().flatten().enumerate().for_each(|(next, place)| place.0 = next);
    for node in &mut graph.nodes {
        for operand in &mut node.inputs {
            if let crate::graph::Operand::Weight(weight) = operand
                && let Some(place) = places[weight.0]
            {
                *weight = place;
            }
        }
    }
    let mut kept = places.iter();
    let weights = std::mem::take(&mut graph.weights);
    let (used, unused): (Vec<_>, Vec<_>) = weights.into_iter().partition(|_| kept.next().is_some_and(Option::is_some));
    graph.weights = used;
    graph.unused.extend(unused.into_iter().filter(|weight| !weight.is_buffer).map(|weight| weight.name));
}
