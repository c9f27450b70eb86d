//! Adds tensors and nodes to a network: constants, and layers whose weights have codes.

use super::plan::{LayerCodes, StaticKind, StaticLayer};
use crate::graph::Weight;
use crate::to_onnx::{OnnxNetwork, OnnxWeight, WeightBytes};
use briquette_core::OutputAxis;
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxTensor, OnnxType};

/// A network that gets tensors and nodes.
pub(super) struct NodeWriter {
    pub(super) network: OnnxNetwork,
}

impl NodeWriter {
    pub(super) fn model(&mut self) -> &mut OnnxModel {
        &mut self.network.model
    }

    /// Adds a constant. Returns its name.
    pub(super) fn inline(&mut self, name: String, dtype: OnnxType, shape: Vec<usize>, bytes: Vec<u8>) -> String {
        self.model().tensors.push(OnnxTensor { name: name.clone(), dtype, shape, data: OnnxData::Inline(bytes) });
        name
    }

    /// Adds a node with at most one attribute.
    pub(super) fn push(&mut self, op: &'static str, inputs: Vec<String>, output: String, axis: Option<i64>) {
        let attributes = axis.map(|axis| ("axis", OnnxAttribute::Int(axis))).into_iter().collect();
        self.model().nodes.push(OnnxNode::new(("", op), inputs, vec![output], attributes));
    }

    /// Adds the codes of a layer's weight and bias, and reads them in its node. Returns the name of the matrix.
    ///
    /// `input` is the scale of the layer's input.
    pub(super) fn layer(&mut self, node: &mut OnnxNode, layer: &StaticLayer, codes: &LayerCodes, input: f32) -> String {
        let weight = &self.network.graph.weights[layer.weight.0];
        let (own, mut shape, n_out) = (weight.name.clone(), outputs_first(weight), codes.scales.len());
        // Layers that share a weight have codes of their own.
        let count = self.network.weights.len();
        let own = if self.has_tensor(&format!("{own}.codes")) { format!("{own}.{count}") } else { own };
        let (bytes, axis) = match layer.kind {
            StaticKind::Conv | StaticKind::Gemm => (WeightBytes::Codes, 0),
            StaticKind::MatMul => {
                shape.reverse();
                (WeightBytes::TransposedCodes, 1)
            }
        };
        let data = OnnxData::Streamed(count);
        self.network.weights.push(OnnxWeight { weight: layer.weight, bytes });
        let name = format!("{own}.codes");
        self.model().tensors.push(OnnxTensor { name: name.clone(), dtype: OnnxType::I8, shape, data });
        let scale = self.inline(format!("{own}.scale"), OnnxType::F32, vec![n_out], floats(&codes.scales));
        let zero = self.inline(format!("{own}.zero_point"), OnnxType::I8, vec![n_out], vec![0; n_out]);
        let matrix = format!("{own}.dequantized");
        self.push("DequantizeLinear", vec![name, scale, zero], matrix.clone(), Some(axis));
        node.inputs[1].clone_from(&matrix);
        if layer.kind != StaticKind::MatMul {
            node.inputs.truncate(2);
            let bias = self.bias(&own, codes, input);
            node.inputs.push(bias);
        }
        matrix
    }

    fn bias(&mut self, own: &str, codes: &LayerCodes, input: f32) -> String {
        let scales: Vec<f32> = codes.scales.iter().map(|scale| scale * input).collect();
        let (n_out, values) = (scales.len(), codes.bias.iter().flat_map(|value| value.to_le_bytes()).collect());
        let values = self.inline(format!("{own}.bias.codes"), OnnxType::I32, vec![n_out], values);
        let scale = self.inline(format!("{own}.bias.scale"), OnnxType::F32, vec![n_out], floats(&scales));
        let zero = self.inline(format!("{own}.bias.zero_point"), OnnxType::I32, vec![n_out], vec![0; 4 * n_out]);
        let name = format!("{own}.bias.dequantized");
        self.push("DequantizeLinear", vec![values, scale, zero], name.clone(), Some(0));
        name
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.network.model.tensors.iter().any(|tensor| tensor.name == name)
    }
}

/// The shape of a weight with its outputs as the first axis.
pub fn outputs_first(weight: &Weight) -> Vec<usize> {
    let mut shape = weight.shape.0.clone();
    if weight.layout == OutputAxis::Last {
        shape.reverse();
    }
    shape
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
