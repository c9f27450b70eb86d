//! The readers of each name of a model, and the weight of each tensor.

use crate::graph::WeightId;
use crate::to_onnx::{OnnxNetwork, OnnxWeight};
use briquette_formats::onnx_write::{OnnxData, OnnxModel, OnnxNode};
use std::collections::BTreeMap;

/// The number of readers of each value. An output of the model has one more.
pub(super) struct Readers(BTreeMap<String, usize>);

impl Readers {
    pub(super) fn of(model: &OnnxModel) -> Self {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        let outputs = model.outputs.iter().map(|output| &output.name);
        for name in model.nodes.iter().flat_map(OnnxNode::uses).chain(outputs) {
            *found.entry(name.clone()).or_default() += 1;
        }
        Self(found)
    }

    /// Returns whether one node alone reads a value. `model` has the outputs.
    pub(super) fn has_one(&self, model: &OnnxModel, name: &str) -> bool {
        self.0.get(name) == Some(&1) && !is_output(model, name)
    }

    /// Returns whether a node or the model's outputs read a value.
    pub(super) fn has_any(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Returns whether a value is an output of the model.
pub(super) fn is_output(model: &OnnxModel, name: &str) -> bool {
    model.outputs.iter().any(|output| output.name == name)
}

/// Returns the weight of each streamed tensor, by name.
pub(in crate::to_onnx) fn weights_by_name(network: &OnnxNetwork) -> BTreeMap<String, OnnxWeight> {
    let weight = |tensor: &briquette_formats::onnx_write::OnnxTensor| match tensor.data {
        OnnxData::Streamed(index) => Some((tensor.name.clone(), network.weights[index])),
        OnnxData::Inline(_) | OnnxData::Encoded(_) => None,
    };
    network.model.tensors.iter().filter_map(weight).collect()
}

/// Returns the weight of an input of a node, if it is one.
pub(super) fn weight_of(weights: &BTreeMap<String, OnnxWeight>, name: Option<&String>) -> Option<WeightId> {
    Some(weights.get(name?)?.weight)
}
