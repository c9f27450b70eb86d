//! How much memory a run takes beside weights, predicted from the shapes of the values for a batch.

use super::attend::holds_scores;
use super::example::EXAMPLE;
use super::parts::{n_elements, patches};
use super::program::needed_nodes;
use super::{GraphNet, GraphOutline};
use briquette_core::Result;
use briquette_graph::op::Composite;
use briquette_graph::{Extents, Graph, InputSource, Node, Op, Operand, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most copies of an attention's scores at a time: a mask or a softmax is computed beside the scores before it.
const SCORE_COPIES: u64 = 3;
/// Bytes of an element of f32.
const ELEMENT_BYTES: u64 = 4;
/// Bytes of graphs, programs and buffers while a run is planned: for any network, and for each node.
const PLAN_BYTES: [u64; 2] = [1 << 19, 1 << 12];

/// Predicts the memory that runs of a network take beside its weights.
///
/// Every value is f32, and integers take twice as much, from their computation to their last use. The patches of
/// convolutions count, the scores of attention where no kernel computes them in tiles, and what the plan of a run takes.
/// Logits of tokens do not count: they are computed in parts. A network that was given as a graph has values in proportion to its inputs.
#[derive(Debug, Clone)]
pub struct RunSizes(Arc<GraphOutline>);

/// The values that a part of a run begins with, and those that it computes.
type RunPart<'a> = [&'a [ValueId]; 2];

impl GraphNet {
    /// Returns the sizes of its runs.
    pub fn run_sizes(&self) -> RunSizes {
        RunSizes(Arc::clone(&self.outline))
    }
}

impl RunSizes {
    /// Predicts the bytes of graphs, programs and buffers while a run is planned.
    pub fn plan(&self) -> u64 {
        PLAN_BYTES[0] + self.plan_of_part()
    }

    /// Predicts the bytes of the graph and the program of a part of a network that was planned before.
    fn plan_of_part(&self) -> u64 {
        PLAN_BYTES[1] * self.0.graph.nodes.len() as u64
    }

    /// Predicts the bytes of a run of a batch of these extents, with its plan.
    pub fn whole(&self, extents: Extents) -> u64 {
        self.plan() + self.of_part(extents, [&[], &[self.last()]])
    }

    /// Predicts the bytes of the part before the first block, with the plan, and of a copy of the values after it.
    pub fn entry(&self, extents: Extents) -> u64 {
        self.plan() + self.of_part_and_copy(extents, [&[], self.0.cuts.state(0)])
    }

    /// Predicts the bytes of a block with its plan, and of a copy of the values after it.
    pub fn block(&self, index: usize, extents: Extents) -> u64 {
        let cuts = &self.0.cuts;
        self.plan_of_part() + self.of_part_and_copy(extents, [cuts.state(index), cuts.state(index + 1)])
    }

    /// Predicts the bytes of the part after the last block, with its plan.
    pub fn exit(&self, extents: Extents) -> u64 {
        self.plan_of_part() + self.of_part(extents, [self.0.cuts.state(self.0.cuts.len()), &[self.last()]])
    }

    fn last(&self) -> ValueId {
        if self.0.graph.takes_images() { self.0.output } else { self.0.last_state }
    }

    fn of_part(&self, extents: Extents, part: RunPart) -> u64 {
        self.scaled(extents, |graph, shapes| most_elements(graph, shapes, part))
    }

    fn of_part_and_copy(&self, extents: Extents, part: RunPart) -> u64 {
        self.scaled(extents, |graph, shapes| {
            let of_copy: u64 = part[1].iter().map(|value| n_elements(shapes, *value)).sum();
            most_elements(graph, shapes, part) + of_copy
        })
    }

    /// Returns the bytes of a number of elements that depends on a graph and its shapes.
    fn scaled(&self, extents: Extents, count: impl Fn(&Graph, &[Vec<usize>]) -> u64) -> u64 {
        let outline = &self.0;
        match self.graph_of(extents) {
            // The same values have the same ids in every graph of a network.
            Ok(Some((graph, shapes))) if graph.values.len() == outline.graph.values.len() => {
                ELEMENT_BYTES * count(&graph, &shapes)
            }
            _ => {
                let n = |of: Extents| match self.0.graph.takes_images() {
                    true => of.batch * of.image[0] * of.image[1],
                    false => of.batch * of.tokens,
                };
                let ratio = n(extents) as f64 / n(EXAMPLE) as f64;
                (ELEMENT_BYTES as f64 * ratio * count(&outline.graph, &outline.shapes) as f64) as u64
            }
        }
    }

    /// Builds the graph of a batch, with the shape of each value. `None` for a network that was given as a graph.
    fn graph_of(&self, extents: Extents) -> Result<Option<(Graph, Vec<Vec<usize>>)>> {
        let graph = match (&self.0.onnx, &self.0.source) {
            (Some(onnx), _) => onnx.model.graph(&extents.into())?,
            (None, Some(source)) => source.graph(extents)?,
            (None, None) => return Ok(None),
        };
        let shapes = graph.lower()?.shapes;
        Ok(Some((graph, shapes)))
    }
}

/// Returns the most elements that are held at a time from the given values to the wanted ones.
fn most_elements(graph: &Graph, shapes: &[Vec<usize>], [given, wanted]: RunPart) -> u64 {
    let nodes = needed_nodes(graph, given, wanted);
    let mut last_uses: BTreeMap<ValueId, usize> = BTreeMap::new();
    for &node in &nodes {
        last_uses.extend(graph.nodes[node].values().map(|(_, value)| (value, node)));
    }
    let integers: BTreeSet<ValueId> =
        graph.inputs.iter().filter(|input| is_integer(input.source)).map(|input| input.value).collect();
    let size = |value: &ValueId| n_elements(shapes, *value) * if integers.contains(value) { 2 } else { 1 };
    let given = given.iter().copied().chain(graph.inputs.iter().map(|input| input.value));
    let mut held: BTreeSet<ValueId> = given.filter(|value| last_uses.contains_key(value)).collect();
    let mut most = 0;
    for &index in &nodes {
        let node = &graph.nodes[index];
        held.extend(&node.outputs);
        let now: u64 = held.iter().map(size).sum();
        most = most.max(now + patches(graph, shapes, node) + scores(shapes, node));
        held.retain(|value| wanted.contains(value) || last_uses.get(value).is_some_and(|last| *last > index));
    }
    most
}

fn is_integer(source: InputSource) -> bool {
    use InputSource::{Images, SoundFeatures, TokenShares, WindowMask};
    !matches!(source, Images | SoundFeatures | TokenShares | WindowMask { .. })
}

/// Returns the elements of an attention's scores and their copies; 0 where a kernel computes them in tiles.
fn scores(shapes: &[Vec<usize>], node: &Node) -> u64 {
    let Op::Composite(Composite::Attention(settings)) = &node.op else { return 0 };
    let shape = |at: usize| match node.inputs.get(at) {
        Some(Operand::Value(value)) => Some(&shapes[value.0]),
        _ => None,
    };
    let (Some([batch, length, width]), Some([_, n_keys, _])) =
        (shape(0).map(Vec::as_slice), shape(1).map(Vec::as_slice))
    else {
        return 0;
    };
    match holds_scores(settings, *width / settings.heads.max(1), node.inputs.len() > 3, *length) {
        true => SCORE_COPIES * [*batch, settings.heads, *length, *n_keys].iter().map(|n| *n as u64).product::<u64>(),
        false => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn sizes(config: serde_json::Value) -> RunSizes {
        GraphNet::random(config.as_object().unwrap(), &Device::default()).unwrap().run_sizes()
    }

    #[test]
    fn the_values_that_a_run_holds_at_a_time_count() {
        let sizes = sizes(serde_json::json!({
            "model_type": "digits-cnn", "image_size": [8, 8], "in_channels": 1, "conv_channels": [16, 32],
            "kernel_size": 3, "padding": 1, "pool_size": 2, "hidden_size": 80, "num_labels": 10
        }));
        // The second convolution: its input, its output, and the patches of 16 channels.
        let at_a_time = 16 * 64 + 32 * 64 + 64 * 16 * 9;
        let of = |batch| sizes.whole(Extents { batch, image: [8, 8], ..Extents::default() });
        assert_eq!([of(1) - sizes.plan(), of(2) - sizes.plan()], [4 * at_a_time, 8 * at_a_time]);
    }

    #[test]
    fn the_scores_of_attention_in_windows_grow_with_the_square_of_the_length() {
        let sizes = sizes(serde_json::json!({
            "model_type": "mistral", "vocab_size": 50, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 16, "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true
        }));
        let of = |tokens| sizes.whole(Extents { batch: 1, tokens, ..Extents::default() }) as f64;
        // 2 heads of f32, in several copies.
        let scores = |n: f64| 4.0 * 2.0 * n * n * SCORE_COPIES as f64;
        let rise = (of(800) - of(400)) / (scores(800.0) - scores(400.0));
        assert!((1.0..1.1).contains(&rise), "{rise}");
    }
}
