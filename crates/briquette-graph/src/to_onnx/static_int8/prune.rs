//! Removes tensors and constants that no operator reads.

use crate::to_onnx::OnnxNetwork;
use briquette_formats::onnx_write::{OnnxData, OnnxModel, OnnxNode};
use std::collections::BTreeSet;

/// Removes `Constant` nodes that no node reads, such as the bounds of activations that became ranges.
pub(super) fn remove_unread_constants(model: &mut OnnxModel) {
    let outputs = model.outputs.iter().map(|output| &output.name);
    let used: BTreeSet<String> = model.nodes.iter().flat_map(OnnxNode::uses).chain(outputs).cloned().collect();
    model.nodes.retain(|node| node.op != "Constant" || node.outputs.iter().any(|name| used.contains(name)));
}

/// Returns the network without unused tensors and their weights.
pub(in crate::to_onnx) fn without_unused(mut network: OnnxNetwork) -> OnnxNetwork {
    let outputs = network.model.outputs.iter().map(|output| &output.name);
    let used: BTreeSet<&String> = network.model.nodes.iter().flat_map(OnnxNode::uses).chain(outputs).collect();
    let mut tensors = std::mem::take(&mut network.model.tensors);
    tensors.retain(|tensor| used.contains(&tensor.name));
    let mut weights = Vec::new();
    for tensor in &mut tensors {
        if let OnnxData::Streamed(index) = &mut tensor.data {
            weights.push(network.weights[*index]);
            *index = weights.len() - 1;
        }
    }
    network.model.tensors = tensors;
    network.weights = weights;
    network
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::to_onnx::{OnnxWeight, WeightBytes};
    use crate::{Graph, WeightId};
    use briquette_formats::onnx_write::{OnnxDim, OnnxTensor, OnnxType, OnnxValue};

    #[test]
    fn a_tensor_stays_if_a_node_reads_it_or_if_it_is_an_output() {
        let tensor = |(at, name): (usize, &str)| OnnxTensor {
            name: name.into(),
            dtype: OnnxType::F32,
            shape: vec![2],
            data: OnnxData::Streamed(at),
        };
        let value = |name: &str| OnnxValue::new(name, OnnxType::F32, vec![OnnxDim::Fixed(2)]);
        let add = OnnxNode::new(("", "Add"), vec!["x".into(), "read".into()], vec!["y".into()], Vec::new());
        let model = OnnxModel {
            nodes: vec![add],
            inputs: vec![value("x")],
            outputs: vec![value("y"), value("constant")],
            tensors: ["unused", "read", "constant"].into_iter().enumerate().map(tensor).collect(),
            ..OnnxModel::default()
        };
        let weights = (0..3).map(|at| OnnxWeight { weight: WeightId(at), bytes: WeightBytes::Stored }).collect();
        let found = without_unused(OnnxNetwork { model, weights, graph: Graph::default(), values: Default::default() });
        let kept: Vec<(&str, WeightId)> = (found.model.tensors.iter())
            .map(|tensor| match tensor.data {
                OnnxData::Streamed(at) => (tensor.name.as_str(), found.weights[at].weight),
                _ => panic!("all are streamed"),
            })
            .collect();
        assert_eq!(kept, [("read", WeightId(1)), ("constant", WeightId(2))]);
    }
}
