//! Writes pairs of `QuantizeLinear` and `DequantizeLinear` around quantized operators.

use super::names::is_output;
use super::plan::{ActivationScale, LayerCodes, StaticKind, StaticLayer, StaticPlan};
use crate::graph::Weight;
use crate::to_onnx::{OnnxNetwork, OnnxWeight, WeightBytes};
use briquette_core::OutputAxis;
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxTensor, OnnxType};
use std::collections::{BTreeMap, BTreeSet};

/// Writes the quantized model. Returns it with the names of the matrices of convolutions and `Gemm`.
pub(super) fn insert(
    plan: StaticPlan,
    scales: &[ActivationScale],
    codes: &[LayerCodes],
) -> (OnnxNetwork, BTreeSet<String>) {
    let StaticPlan { mut network, values, layers, is_quantized } = plan;
    let nodes = std::mem::take(&mut network.model.nodes);
    let layers: BTreeMap<usize, (StaticLayer, &LayerCodes)> =
        layers.into_iter().zip(codes).map(|(layer, codes)| (layer.node, (layer, codes))).collect();
    let places = values.iter().enumerate().map(|(place, value)| (value.name.clone(), place)).collect();
    let is_float = values.iter().map(|value| value.is_float).collect();
    let mut to = Insertion { network, places, is_float, scales, matrices: BTreeSet::new() };
    let given: Vec<String> = to.network.model.inputs.iter().map(|input| input.name.clone()).collect();
    given.iter().for_each(|name| to.pair(name, name));
    for (at, mut node) in nodes.into_iter().enumerate() {
        for input in &mut node.inputs {
            if let Some(&place) = to.places.get(input.as_str())
                && (is_quantized[at] || !to.is_float[place])
            {
                *input = dequantized(input);
            }
        }
        if let Some((layer, codes)) = layers.get(&at) {
            to.layer(&mut node, layer, codes);
        }
        to.node(node);
    }
    (to.network, to.matrices)
}

struct Insertion<'a> {
    network: OnnxNetwork,
    /// The index of each quantized value, by name.
    places: BTreeMap<String, usize>,
    is_float: Vec<bool>,
    scales: &'a [ActivationScale],
    /// The names of the matrices of convolutions and `Gemm`.
    matrices: BTreeSet<String>,
}

fn dequantized(name: &str) -> String {
    format!("{name}/dequantized")
}

impl Insertion<'_> {
    fn model(&mut self) -> &mut OnnxModel {
        &mut self.network.model
    }

    fn inline(&mut self, name: String, dtype: OnnxType, shape: Vec<usize>, bytes: Vec<u8>) -> String {
        self.model().tensors.push(OnnxTensor { name: name.clone(), dtype, shape, data: OnnxData::Inline(bytes) });
        name
    }

    fn push(&mut self, op: &'static str, inputs: Vec<String>, output: String, axis: Option<i64>) {
        let attributes = axis.map(|axis| ("axis", OnnxAttribute::Int(axis))).into_iter().collect();
        self.model().nodes.push(OnnxNode::new(("", op), inputs, vec![output], attributes));
    }

    /// Adds a node, and the pair after it. An output of the model that is quantized keeps its name after the pair.
    fn node(&mut self, mut node: OnnxNode) {
        let name = node.outputs[0].clone();
        let is_pair = self.places.contains_key(&name);
        if is_pair && is_output(&self.network.model, &name) {
            node.outputs[0] = format!("{name}/float");
        }
        let (output, others) = (node.outputs[0].clone(), node.outputs[1..].to_vec());
        self.model().nodes.push(node);
        self.pair(&output, &name);
        others.iter().for_each(|other| self.pair(other, other));
    }

    /// Adds the pair of a value, if it is quantized. `computed` is its name before the pair.
    fn pair(&mut self, computed: &str, name: &str) {
        let Some(&place) = self.places.get(name) else { return };
        let ActivationScale { scale, zero } = self.scales[place];
        let scale = self.inline(format!("{name}/scale"), OnnxType::F32, Vec::new(), scale.to_le_bytes().to_vec());
        let zero = self.inline(format!("{name}/zero_point"), OnnxType::U8, Vec::new(), vec![zero]);
        let codes = format!("{name}/quantized");
        self.push("QuantizeLinear", vec![computed.into(), scale.clone(), zero.clone()], codes.clone(), None);
        self.push("DequantizeLinear", vec![codes.clone(), scale.clone(), zero.clone()], dequantized(name), None);
        if computed != name {
            self.push("DequantizeLinear", vec![codes, scale, zero], name.into(), None);
            // The node that computes the value may have the name of the value.
            self.model().nodes.iter_mut().next_back().into_iter().for_each(|last| last.name.push_str("/output"));
        }
    }

    /// Adds the codes of a layer's weight and bias, and reads them in its node.
    fn layer(&mut self, node: &mut OnnxNode, layer: &StaticLayer, codes: &LayerCodes) {
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
            self.matrices.insert(matrix);
            node.inputs.truncate(2);
            let bias = self.bias(&own, layer, codes);
            node.inputs.push(bias);
        }
    }

    fn bias(&mut self, own: &str, layer: &StaticLayer, codes: &LayerCodes) -> String {
        let input = self.scales[layer.input].scale;
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
