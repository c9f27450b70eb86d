//! The network of an ONNX file, whose nodes are kept as they are.

use super::{OnnxNetwork, OnnxWeight, WeightBytes};
use crate::graph::{Weight, WeightId};
use crate::onnx::ImportedGraph;
use briquette_core::{OutputAxis, Result};
use briquette_formats::onnx::carried_model;
use briquette_formats::{InputFile, TensorInfo};
use std::collections::BTreeMap;

/// Returns the network of a file. `imported` is its graph, and `tensors` has the weights.
///
/// # Errors
/// - Config: a weight has a type that is not written.
/// - Input: the file is damaged.
/// - Io: a file cannot be read.
pub fn file_network(file: &InputFile, imported: ImportedGraph, tensors: &[TensorInfo]) -> Result<OnnxNetwork> {
    let ImportedGraph { mut graph, names, .. } = imported;
    let known = graph.weights.iter().enumerate().map(|(id, weight)| (weight.name.clone(), WeightId(id)));
    let known: BTreeMap<String, WeightId> = known.collect();
    let (mut weights, mut streamed) = (Vec::new(), BTreeMap::new());
    for info in tensors.iter().filter(|info| info.dtype.is_weight()) {
        let name = info.name.to_string();
        let weight = known.get(&name).copied().unwrap_or_else(|| {
            graph.weights.push(unused(info));
            WeightId(graph.weights.len() - 1)
        });
        streamed.insert(name, (weights.len(), (*info.shape).clone()));
        weights.push(OnnxWeight { weight, bytes: WeightBytes::Stored });
    }
    Ok(OnnxNetwork { model: carried_model(file, &streamed)?, weights, graph, values: names })
}

/// A weight that no node of the graph uses.
fn unused(info: &TensorInfo) -> Weight {
    let (name, shape) = (info.name.to_string(), (*info.shape).clone());
    Weight { name, dtype: info.dtype, shape, layout: OutputAxis::First, aliases: Vec::new(), is_buffer: true }
}
