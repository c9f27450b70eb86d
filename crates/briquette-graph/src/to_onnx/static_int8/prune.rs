//! Removes tensors that no operator reads.

use crate::to_onnx::OnnxNetwork;
use briquette_formats::onnx_write::{OnnxData, OnnxNode};
use std::collections::BTreeSet;

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
