//! Queries, keys and values of self-attention, whose products are computed on codes.

use crate::graph::{Graph, Node, Operand, ValueId, WeightId};
use crate::op::{Attention, Composite, Op};
use std::collections::BTreeMap;

/// The operands of a self-attention: queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionOperands {
    /// The outputs of the three linear layers.
    pub values: [ValueId; 3],
    /// The weights of the layers.
    pub weights: [WeightId; 3],
}

/// Returns the operands of each self-attention that a kernel computes on codes: bidirectional, without position biases or rotations,
/// on the outputs of three linear layers of one input, which nothing else reads.
pub fn attention_operands(graph: &Graph) -> Vec<AttentionOperands> {
    let makers: BTreeMap<ValueId, &Node> =
        graph.nodes.iter().flat_map(|node| node.outputs.iter().map(move |output| (*output, node))).collect();
    let mut n_uses: BTreeMap<ValueId, usize> = graph.outputs.iter().map(|output| (*output, 1)).collect();
    for (_, value) in graph.nodes.iter().flat_map(Node::values) {
        *n_uses.entry(value).or_default() += 1;
    }
    let layer = |value: ValueId| match makers.get(&value).map(|node| (&node.op, node.inputs.as_slice())) {
        Some((Op::Composite(Composite::Linear), [Operand::Value(input), Operand::Weight(weight), ..]))
            if n_uses[&value] == 1 =>
        {
            Some((*input, *weight))
        }
        _ => None,
    };
    let operands = |node: &Node| {
        let values: [ValueId; 3] = node.values().map(|(_, value)| value).collect::<Vec<_>>().try_into().ok()?;
        let [q, k, v] = values.map(layer);
        let (q, k, v) = (q?, k?, v?);
        let is_one_input = q.0 == k.0 && k.0 == v.0;
        is_one_input.then_some(AttentionOperands { values, weights: [q.1, k.1, v.1] })
    };
    graph.nodes.iter().filter(|node| is_self_attention(node)).filter_map(operands).collect()
}

/// Returns whether a node is attention in both directions, of three values alone.
pub(super) fn is_self_attention(node: &Node) -> bool {
    let Op::Composite(Composite::Attention(settings)) = &node.op else { return false };
    *settings == Attention::full(settings.heads) && node.inputs.len() == 3
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph_of;
    use crate::op::Primitive;
    use crate::{Extents, fixed_values::with_fixed_grids};
    use briquette_formats::Checkpoint;
    use std::path::Path;

    fn graph(name: &str) -> Graph {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        graph_of(&Checkpoint::open(&path).unwrap(), Extents::EXAMPLE).unwrap().unwrap()
    }

    #[test]
    fn operands_are_outputs_of_three_layers_of_one_input() {
        let bert = graph("models/bert-tiny");
        let found = attention_operands(&bert);
        assert_eq!(found.len(), 2);
        for (layer, operands) in found.iter().enumerate() {
            for (name, weight) in ["query", "key", "value"].iter().zip(operands.weights) {
                let expected = format!("encoder.layer.{layer}.attention.self.{name}.weight");
                assert_eq!(bert.weights[weight.0].name, expected);
            }
        }
        // Decoders rotate queries and keys and mask later keys, and T5 adds biases.
        for other in ["models/llama-tied", "families/gpt2", "families/t5"] {
            assert_eq!(attention_operands(&graph(other)), []);
        }
    }

    #[test]
    fn only_attention_reads_the_rounded_operands() {
        let bert = graph("models/bert-tiny");
        let [q, k, v] = attention_operands(&bert)[1].values;
        let grid = crate::op::FixedGrid { scale: 0.1, zero: 128, codes: [0, 255] };
        let grids = |values: &[ValueId]| values.iter().map(|value| (bert.values[value.0].clone(), grid)).collect();
        let rounded = with_fixed_grids(bert.clone(), &grids(&[q, k, v]), &|_| false).unwrap();
        let is_rounding = |node: &&Node| matches!(node.op, Op::Primitive(Primitive::FakeQuantize(_)));
        assert_eq!(rounded.nodes.iter().filter(is_rounding).count(), 3);
        let attention = rounded.nodes.iter().filter(|node| is_self_attention(node)).nth(1).unwrap();
        assert!(attention.values().all(|(_, value)| rounded.values[value.0].ends_with(".rounded")));
        // A kernel needs all three.
        let alone = with_fixed_grids(bert.clone(), &grids(&[q, k]), &|_| false).unwrap();
        assert_eq!(alone.nodes.iter().filter(is_rounding).count(), 0);
    }
}
