//! The linear layers of a block, with the values at their inputs and beside their outputs.

use super::{AnyTensor, GraphNet};
use crate::block_state::BlockState;
use crate::graph_net::RunInputs;
use briquette_graph::op::{Composite, ElementFunction, Op, Primitive};
use briquette_graph::{Graph, Node, Operand, ValueId};

/// Most groups of an ONNX model: the runs for each begin at the model's inputs.
const MAX_GROUPS: usize = 100;

/// Linear layers with the same inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearGroup {
    pub(super) input: ValueId,
    /// The layers, by path, and the value that is added to the outputs of each: the residual stream.
    layers: Vec<(String, Option<ValueId>)>,
}

/// The values of a [`LinearGroup`] in a run.
#[derive(Debug, Clone)]
pub struct GroupValues {
    /// The inputs.
    pub input: AnyTensor,
    /// The values that are added to the outputs of each layer.
    pub added: Vec<Option<AnyTensor>>,
}

impl LinearGroup {
    /// Returns the paths of the layers.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|(path, _)| path.as_str())
    }
}

impl GraphNet {
    /// Returns the linear layers of a block in groups with the same inputs, in the order in which they run.
    ///
    /// Layers that several nodes use are left out. An ONNX model is one block, whose runs begin at its inputs: it has no groups if
    /// there are more than 100.
    pub fn linear_groups(&self, index: usize) -> Vec<LinearGroup> {
        let (graph, mut groups) = (self.graph(), Vec::<LinearGroup>::new());
        for node in &graph.nodes[self.outline.cuts.nodes(index)] {
            let Some((input, output, path)) = self.linear(node) else { continue };
            if graph.nodes.iter().filter(|other| self.linear(other).is_some_and(|(.., its)| its == path)).count() > 1 {
                continue;
            }
            let layer = (path.to_string(), added_to(graph, output));
            match groups.iter_mut().find(|group| group.input == input) {
                Some(group) => group.layers.push(layer),
                None => groups.push(LinearGroup { input, layers: vec![layer] }),
            }
        }
        if self.outline.onnx.is_some() && groups.len() > MAX_GROUPS {
            groups.clear();
        }
        groups
    }

    /// Returns input, output and layer path of a linear node.
    pub(super) fn linear<'n>(&'n self, node: &Node) -> Option<(ValueId, ValueId, &'n str)> {
        let (Op::Composite(Composite::Linear), [Operand::Value(input), weight @ Operand::Weight(id), ..]) =
            (&node.op, &node.inputs[..])
        else {
            return None;
        };
        let layer = self.outline.index.of_weight(*id).filter(|_| !self.outline.index.is_table(weight))?;
        Some((*input, *node.outputs.first()?, self.layers.0[layer].0.as_str()))
    }

    /// Returns the values at a group of linear layers of a block. Only what they depend on is computed.
    ///
    /// # Panics
    /// If the group is of another block.
    pub fn group_values(
        &self,
        index: usize,
        group: &LinearGroup,
        state: BlockState,
        inputs: &RunInputs,
    ) -> GroupValues {
        let added: Vec<ValueId> = group.layers.iter().filter_map(|(_, added)| *added).collect();
        let wanted: Vec<ValueId> = std::iter::once(group.input).chain(added).collect();
        let found = self.values_of_block(index, &wanted, state, inputs);
        let mut found = found.into_iter();
        let input = found.next().expect("the input of the group");
        GroupValues { input, added: group.layers.iter().map(|(_, added)| added.and_then(|_| found.next())).collect() }
    }

    /// Returns some values of a block, or of an ONNX model. Only what they depend on is computed.
    pub(super) fn values_of_block(
        &self,
        index: usize,
        wanted: &[ValueId],
        state: BlockState,
        inputs: &RunInputs,
    ) -> Vec<AnyTensor> {
        match &self.outline.onnx {
            Some(onnx) => self.run_onnx(onnx, self.given_of_block(index, state, inputs), wanted),
            None => {
                let (run, program) = self.block_run(index, state, inputs, wanted);
                run.finish(&program)
            }
        }
    }
}

/// Returns the other operand of the sum that a value is an operand of.
fn added_to(graph: &Graph, output: ValueId) -> Option<ValueId> {
    let is_used = |node: &&Node| node.values().any(|(_, value)| value == output);
    let mut users = graph.nodes.iter().filter(is_used);
    let (first, None) = (users.next()?, users.next()) else { return None };
    match (&first.op, &first.inputs[..]) {
        (Op::Primitive(Primitive::Elementwise(ElementFunction::Add)), [Operand::Value(a), Operand::Value(b)]) => {
            Some(if *a == output { *b } else { *a })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::graph_net::GraphNet;
    use briquette_formats::Checkpoint;
    use burn::tensor::Device;

    /// Returns the last word of each layer's path and whether something is added to its outputs, by group.
    fn groups(name: &str) -> Vec<Vec<(String, bool)>> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        let net = GraphNet::unfilled(&Checkpoint::open(&path).unwrap(), &Device::flex()).unwrap().0;
        let word = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
        let of_group = |group: &super::LinearGroup| {
            group.layers.iter().map(|(path, added)| (word(path), added.is_some())).collect()
        };
        net.linear_groups(1).iter().map(of_group).collect()
    }

    #[test]
    fn layers_with_the_same_inputs_are_a_group_and_residuals_are_found() {
        let layer = |name: &str, is_added| (name.to_string(), is_added);
        let expected = [
            vec![layer("query", false), layer("key", false), layer("value", false)],
            vec![layer("dense", true)],
            vec![layer("dense", false)],
            vec![layer("dense", true)],
        ];
        assert_eq!(groups("families/bert"), expected);
        let llama = groups("families/llama");
        let names: Vec<Vec<&str>> =
            llama.iter().map(|group| group.iter().map(|(name, _)| name.as_str()).collect()).collect();
        let expected =
            [vec!["q_proj", "k_proj", "v_proj"], vec!["o_proj"], vec!["gate_proj", "up_proj"], vec!["down_proj"]];
        assert_eq!(names, expected);
        let is_added: Vec<bool> = llama.iter().map(|group| group[0].1).collect();
        assert_eq!(is_added, [false, true, false, true]);
    }
}
