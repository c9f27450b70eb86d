//! Removes nodes whose outputs nothing uses.

use crate::graph::{Graph, ValueId};

impl Graph {
    /// Removes the outputs that nodes with this in their names compute, with the nodes that only they need.
    ///
    /// Nothing is removed if no output would be left. Weights stay in the list.
    #[must_use]
    pub fn without_outputs_of(mut self, name: &str) -> Self {
        let makers = self.nodes.iter().filter(|node| node.name.contains(name));
        let made: Vec<ValueId> = makers.flat_map(|node| node.outputs.iter().copied()).collect();
        let kept: Vec<ValueId> = self.outputs.iter().copied().filter(|output| !made.contains(output)).collect();
        if !kept.is_empty() && kept.len() < self.outputs.len() {
            self.outputs = kept;
            // Blocks are ranges of nodes, so only nodes after all of them may go.
            let end = self.blocks.iter().map(|block| block.nodes.end).max().unwrap_or(0);
            let mut is_kept = used_nodes(&self).into_iter().enumerate().map(|(index, is_used)| is_used || index < end);
            self.nodes.retain(|_| is_kept.next().unwrap_or(true));
        }
        self
    }
}

/// Removes nodes that no output depends on, and weights that no node uses. Values are kept.
pub(crate) fn remove_unused(graph: &mut Graph) {
    let mut is_kept = used_nodes(graph).into_iter();
    graph.nodes.retain(|_| is_kept.next().unwrap_or(true));
    remove_weights(graph);
}

/// Returns for each node whether an output depends on it.
fn used_nodes(graph: &Graph) -> Vec<bool> {
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
    is_kept
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::{Extents, GraphHeaders, known_graph_of};
    use briquette_formats::Checkpoint;
    use std::path::Path;

    #[test]
    fn an_output_goes_with_the_nodes_that_only_it_needs() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/bert-tiny");
        let checkpoint = Checkpoint::open(&fixture).unwrap();
        assert!(GraphHeaders::of(&checkpoint).headers().has("pooler.dense.weight"));
        let graph = known_graph_of(&checkpoint, &Extents::default().into()).unwrap();
        let (n_outputs, n_nodes) = (graph.outputs.len(), graph.nodes.len());
        let rest = graph.clone().without_outputs_of("pooler");
        assert_eq!(rest.outputs.len(), n_outputs - 1);
        assert!(rest.nodes.len() < n_nodes && rest.nodes.iter().all(|node| !node.name.contains("pooler")));
        let hidden = rest.outputs[0];
        assert_eq!(rest.lower().unwrap().shapes[hidden.0], graph.lower().unwrap().shapes[hidden.0]);
        assert_eq!(graph.clone().without_outputs_of("absent").nodes.len(), n_nodes);
    }
}
