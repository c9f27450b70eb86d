//! How much memory a run takes beside weights, predicted from the shapes of the graph's example.

use super::GraphNet;
use super::parts::{n_elements, patches};
use super::program::needed_nodes;
use crate::block_state::BlockState;
use briquette_graph::{Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};

impl GraphNet {
    /// Predicts the bytes that the values of a run take at a time, for tokens, pixels or features of this number.
    ///
    /// Every value is f32 from its computation to its last use, like the patches of a convolution. Logits of tokens do
    /// not count: they are computed in parts.
    pub fn run_bytes(&self, n_inputs: usize) -> u64 {
        let outline = &self.outline;
        let last = if self.takes_images() { outline.output } else { outline.last_state };
        self.scaled(n_inputs, &self.first_input(), [&[], &[last]])
    }

    /// Predicts the bytes of the values before the first block; see [`run_bytes`](Self::run_bytes).
    pub fn entry_bytes(&self, n_inputs: usize) -> u64 {
        self.scaled(n_inputs, &self.first_input(), [&[], self.outline.cuts.state(0)])
    }

    /// Predicts the bytes of the values after the last block; see [`run_bytes`](Self::run_bytes).
    pub fn exit_bytes(&self, state: &BlockState) -> u64 {
        let (outline, cuts) = (&self.outline, &self.outline.cuts);
        let n_elements = state.0.iter().map(|value| value.dims().iter().product::<usize>()).sum();
        let last = if self.takes_images() { outline.output } else { outline.last_state };
        self.scaled(n_elements, cuts.state(cuts.len()), [cuts.state(cuts.len()), &[last]])
    }

    fn first_input(&self) -> Vec<ValueId> {
        self.graph().inputs.first().map(|input| input.value).into_iter().collect()
    }

    /// Returns the bytes of a part of the graph if `values` have `n` elements.
    fn scaled(&self, n: usize, values: &[ValueId], part: [&[ValueId]; 2]) -> u64 {
        let shapes = &self.outline.shapes;
        let of_example: u64 = values.iter().map(|value| n_elements(shapes, *value)).sum();
        let most = most_elements(self.graph(), shapes, part);
        (4.0 * most as f64 * n as f64 / of_example.max(1) as f64) as u64
    }
}

/// Returns the most elements that are held at a time from the given values to the wanted ones.
fn most_elements(graph: &Graph, shapes: &[Vec<usize>], [given, wanted]: [&[ValueId]; 2]) -> u64 {
    let nodes = needed_nodes(graph, given, wanted);
    let mut last_uses: BTreeMap<ValueId, usize> = BTreeMap::new();
    for &node in &nodes {
        last_uses.extend(graph.nodes[node].values().map(|(_, value)| (value, node)));
    }
    let given = given.iter().copied().chain(graph.inputs.iter().map(|input| input.value));
    let mut held: BTreeSet<ValueId> = given.filter(|value| last_uses.contains_key(value)).collect();
    let mut most = 0;
    for &index in &nodes {
        let node = &graph.nodes[index];
        held.extend(&node.outputs);
        let now: u64 = held.iter().map(|value| n_elements(shapes, *value)).sum();
        most = most.max(now + patches(graph, shapes, node));
        held.retain(|value| wanted.contains(value) || last_uses.get(value).is_some_and(|last| *last > index));
    }
    most
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn the_values_that_a_run_holds_at_a_time_count() {
        let config = serde_json::json!({
            "model_type": "digits-cnn", "image_size": [8, 8], "in_channels": 1, "conv_channels": [16, 32],
            "kernel_size": 3, "padding": 1, "pool_size": 2, "hidden_size": 80, "num_labels": 10
        });
        let network = GraphNet::random(config.as_object().unwrap(), &Device::default()).unwrap();
        // The second convolution: its input, its output, and the patches of 16 channels.
        let at_a_time = 16 * 64 + 32 * 64 + 64 * 16 * 9;
        assert_eq!(network.run_bytes(64), 4 * at_a_time);
        assert_eq!(network.run_bytes(128), 8 * at_a_time);
    }
}
