//! Writes pairs of `QuantizeLinear` and `DequantizeLinear` around quantized operators.

use super::names::is_output;
use super::plan::{ActivationScale, LayerCodes, StaticKind, StaticLayer, StaticPlan};
use super::writer::NodeWriter;
use crate::to_onnx::OnnxNetwork;
use briquette_formats::onnx_write::{OnnxNode, OnnxType};
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
    let mut to = Insertion { writer: NodeWriter { network }, places, is_float, scales, matrices: BTreeSet::new() };
    let given: Vec<String> = to.writer.network.model.inputs.iter().map(|input| input.name.clone()).collect();
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
            let matrix = to.writer.layer(&mut node, layer, codes, scales[layer.input].scale);
            if layer.kind != StaticKind::MatMul {
                to.matrices.insert(matrix);
            }
        }
        to.node(node);
    }
    (to.writer.network, to.matrices)
}

struct Insertion<'a> {
    writer: NodeWriter,
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
    /// Adds a node, and the pair after it. An output of the model that is quantized keeps its name after the pair.
    fn node(&mut self, mut node: OnnxNode) {
        let name = node.outputs[0].clone();
        let is_pair = self.places.contains_key(&name);
        if is_pair && is_output(&self.writer.network.model, &name) {
            node.outputs[0] = format!("{name}/float");
        }
        let (output, others) = (node.outputs[0].clone(), node.outputs[1..].to_vec());
        self.writer.model().nodes.push(node);
        self.pair(&output, &name);
        others.iter().for_each(|other| self.pair(other, other));
    }

    /// Adds the pair of a value, if it is quantized. `computed` is its name before the pair.
    fn pair(&mut self, computed: &str, name: &str) {
        let Some(&place) = self.places.get(name) else { return };
        let ActivationScale { scale, zero } = self.scales[place];
        let scale =
            self.writer.inline(format!("{name}/scale"), OnnxType::F32, Vec::new(), scale.to_le_bytes().to_vec());
        let zero = self.writer.inline(format!("{name}/zero_point"), OnnxType::U8, Vec::new(), vec![zero]);
        let codes = format!("{name}/quantized");
        self.writer.push("QuantizeLinear", vec![computed.into(), scale.clone(), zero.clone()], codes.clone(), None);
        self.writer.push("DequantizeLinear", vec![codes.clone(), scale.clone(), zero.clone()], dequantized(name), None);
        if computed != name {
            self.writer.push("DequantizeLinear", vec![codes, scale, zero], name.into(), None);
            // The node that computes the value may have the name of the value.
            self.writer.model().nodes.iter_mut().next_back().into_iter().for_each(|last| last.name.push_str("/output"));
        }
    }
}
