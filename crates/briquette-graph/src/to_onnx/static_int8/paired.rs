//! Models whose values are rounded already: layers between pairs get the codes of a checkpoint.
//!
//! The graph of a checkpoint with static int8 has nodes that round its values, which become pairs of `QuantizeLinear` and `DequantizeLinear`.
//! [`paired`] finds the layers that read pairs, folds batch norms into them, and removes ReLU and ReLU6 where the grid after them has the
//! same bounds. [`PairedPlan::finish`] then writes their codes.

use super::fold::fold_norms;
use super::names::{Readers, weight_of, weights_by_name};
use super::plan::{LayerCodes, StaticKind, StaticLayer};
use super::prune::{remove_unread_constants, without_unused};
use super::writer::NodeWriter;
use crate::absorb::NormPlace;
use crate::graph::{Weight, WeightId};
use crate::to_onnx::{OnnxNetwork, OnnxWeight, WeightBytes};
use briquette_core::{OutputAxis, Result};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxModel, OnnxNode};
use std::collections::BTreeMap;

/// A model with pairs, and its layers with int8 weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PairedPlan {
    network: OnnxNetwork,
    /// The layers. Their inputs are on grids.
    pub layers: Vec<StaticLayer>,
    /// The scale of the input of each layer.
    pub scales: Vec<f32>,
}

/// Finds the layers that read pairs and whose weights have codes.
///
/// # Errors
/// Input: see [`Graph::lower`](crate::Graph::lower).
pub fn paired(mut network: OnnxNetwork, has_codes: &dyn Fn(&Weight) -> bool) -> Result<PairedPlan> {
    let norms = fold_norms(&mut network, has_codes);
    merge_functions(&mut network.model);
    pair_zeros(&mut network.model);
    let ranks = super::choose::ranks(&network)?;
    let (weights, readers) = (weights_by_name(&network), Readers::of(&network.model));
    let nodes = std::mem::take(&mut network.model.nodes);
    let mut found = PairedNodes {
        weights,
        readers,
        network: &network,
        has_codes,
        norms: &norms,
        ranks,
        nodes: Vec::with_capacity(nodes.len()),
        grids: BTreeMap::new(),
        layers: Vec::new(),
        scales: Vec::new(),
    };
    nodes.into_iter().for_each(|node| found.node(node));
    let PairedNodes { nodes, layers, scales, .. } = found;
    network.model.nodes = nodes;
    Ok(PairedPlan { network, layers, scales })
}

impl PairedPlan {
    /// Returns the network.
    pub fn network(&self) -> &OnnxNetwork {
        &self.network
    }

    /// Returns the model with the codes of its layers.
    ///
    /// # Panics
    /// If there is not an entry of `codes` for each layer.
    pub fn finish(self, codes: &[LayerCodes]) -> OnnxNetwork {
        let Self { mut network, layers, scales } = self;
        let nodes = std::mem::take(&mut network.model.nodes);
        let of_node = |at: usize| layers.iter().position(|layer| layer.node == at);
        let mut to = NodeWriter { network };
        for (at, mut node) in nodes.into_iter().enumerate() {
            if let Some(place) = of_node(at) {
                to.layer(&mut node, &layers[place], &codes[place], scales[layers[place].input]);
            }
            to.model().nodes.push(node);
        }
        remove_unread_constants(to.model());
        without_unused(to.network)
    }
}

/// Returns the numbers of an inline tensor of f32.
fn numbers<'a>(model: &'a OnnxModel, name: &str) -> Option<impl Iterator<Item = f32> + 'a> {
    let tensor = model.tensors.iter().find(|tensor| tensor.name == name)?;
    match &tensor.data {
        OnnxData::Inline(bytes) => Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        OnnxData::Streamed(_) | OnnxData::Encoded(_) => None,
    }
}

/// Returns the scale and the zero point of a node that rounds to codes from 0 to 255.
fn unsigned_grid(model: &OnnxModel, node: &OnnxNode) -> Option<(f32, u8)> {
    let scale = numbers(model, node.inputs.get(1)?)?.next()?;
    let zero = model.tensors.iter().find(|tensor| Some(&tensor.name) == node.inputs.get(2))?;
    match &zero.data {
        OnnxData::Inline(bytes) if zero.dtype == briquette_formats::onnx_write::OnnxType::U8 => {
            Some((scale, *bytes.first()?))
        }
        _ => None,
    }
}

/// Lets nodes that round read the input of a ReLU or ReLU6 instead of its output, if the grid has no value that the function changes.
fn merge_functions(model: &mut OnnxModel) {
    let mut inputs: BTreeMap<String, (String, f32)> = BTreeMap::new();
    for node in &model.nodes {
        let bound = |at: usize| numbers(model, node.inputs.get(at)?)?.next();
        let high = match &*node.op {
            "Relu" => Some(f32::INFINITY),
            "Clip" if bound(1) == Some(0.0) => bound(2),
            _ => None,
        };
        inputs.extend(high.map(|high| (node.outputs[0].clone(), (node.inputs[0].clone(), high))));
    }
    let mut nodes = std::mem::take(&mut model.nodes);
    for node in nodes.iter_mut().filter(|node| node.op == "QuantizeLinear") {
        let Some((x, high)) = inputs.get(&node.inputs[0]) else { continue };
        // A value above the bound has the highest code if the bound has it.
        let is_same = |(scale, zero): (f32, u8)| zero == 0 && (high / scale).round_ties_even() >= 255.0;
        if unsigned_grid(model, node).is_some_and(is_same) {
            node.inputs[0].clone_from(x);
        }
    }
    model.nodes = nodes;
    remove_unread_functions(model);
}

/// Removes ReLU and ReLU6 nodes that nothing reads.
fn remove_unread_functions(model: &mut OnnxModel) {
    let readers = Readers::of(model);
    model.nodes.retain(|node| !matches!(&*node.op, "Relu" | "Clip") || readers.has_any(&node.outputs[0]));
}

/// Rounds values again after zeros were added, as fused operators expect. Zeros are on every grid.
fn pair_zeros(model: &mut OnnxModel) {
    let nodes = std::mem::take(&mut model.nodes);
    let grids: BTreeMap<String, Vec<String>> = nodes
        .iter()
        .filter(|node| node.op == "DequantizeLinear")
        .map(|node| (node.outputs[0].clone(), node.inputs[1..].to_vec()))
        .collect();
    for mut node in nodes {
        let grid = grids.get(&node.inputs[0]).filter(|_| node.op == "Pad" && node.inputs.len() == 2);
        let Some(grid) = grid else {
            model.nodes.push(node);
            continue;
        };
        let output = node.outputs[0].clone();
        let [zeros, codes] = ["zeros", "codes"].map(|part| format!("{output}/{part}"));
        node.outputs = vec![zeros.clone()];
        node.name.push_str("/zeros");
        let inputs = |x: String| std::iter::once(x).chain(grid.iter().cloned()).collect();
        model.nodes.push(node);
        let quantize = OnnxNode::new(("", "QuantizeLinear"), inputs(zeros), vec![codes.clone()], Vec::new());
        let dequantize = OnnxNode::new(("", "DequantizeLinear"), inputs(codes), vec![output], Vec::new());
        model.nodes.extend([quantize, dequantize]);
    }
}

/// The nodes and layers that were found so far.
struct PairedNodes<'a> {
    network: &'a OnnxNetwork,
    has_codes: &'a dyn Fn(&Weight) -> bool,
    norms: &'a BTreeMap<WeightId, NormPlace>,
    weights: BTreeMap<String, OnnxWeight>,
    readers: Readers,
    ranks: BTreeMap<String, usize>,
    nodes: Vec<OnnxNode>,
    /// The scale of each value on a grid.
    grids: BTreeMap<String, f32>,
    layers: Vec<StaticLayer>,
    scales: Vec<f32>,
}

impl PairedNodes<'_> {
    fn node(&mut self, node: OnnxNode) {
        match &*node.op {
            "DequantizeLinear" => {
                let scale = numbers(&self.network.model, &node.inputs[1]).and_then(|mut all| all.next());
                self.grids.extend(scale.map(|scale| (node.outputs[0].clone(), scale)));
                self.nodes.push(node);
            }
            "Conv" => self.layer(node, StaticKind::Conv),
            "MatMul" => match self.ranks.get(&node.inputs[0]) {
                Some(2) => self.layer(node, StaticKind::Gemm),
                _ => self.layer(node, StaticKind::MatMul),
            },
            "Add" if self.adds_bias(&node) => self.bias(&node),
            _ => self.nodes.push(node),
        }
    }

    /// Adds a node, as a layer if its input is on a grid and its weight has codes.
    fn layer(&mut self, mut node: OnnxNode, kind: StaticKind) {
        let bias = node.inputs.get(2).map(|_| weight_of(&self.weights, node.inputs.get(2)));
        let (Some(weight), Some(&scale), None | Some(Some(_))) =
            (self.matrix(&node, kind), self.grids.get(&node.inputs[0]), bias)
        else {
            return self.nodes.push(node);
        };
        let norm = self.norms.get(&weight).filter(|_| kind == StaticKind::Conv).cloned();
        if kind == StaticKind::Gemm {
            node.op = "Gemm".into();
            node.attributes = vec![("transB".into(), OnnxAttribute::Int(1))];
        }
        let (input, at) = (self.scales.len(), self.nodes.len());
        self.layers.push(StaticLayer { kind, weight, bias: bias.flatten(), norm, input, node: at });
        self.scales.push(scale);
        self.nodes.push(node);
    }

    /// Returns the weight of a layer, if it has codes and the layer has it in a usual layout.
    fn matrix(&self, node: &OnnxNode, kind: StaticKind) -> Option<WeightId> {
        let OnnxWeight { weight, bytes } = *self.weights.get(node.inputs.get(1)?)?;
        let own = &self.network.graph.weights[weight.0];
        let is_usual = match (kind, bytes) {
            (StaticKind::Conv, WeightBytes::Floats) => own.layout == OutputAxis::First,
            (StaticKind::Gemm | StaticKind::MatMul, WeightBytes::TransposedFloats) => true,
            (StaticKind::Gemm | StaticKind::MatMul, WeightBytes::Floats) => own.layout == OutputAxis::Last,
            _ => false,
        };
        (is_usual && (self.has_codes)(own)).then_some(weight)
    }

    /// Returns whether a node adds the bias of the `Gemm` before it.
    fn adds_bias(&self, node: &OnnxNode) -> bool {
        let is_gemm = |before: &OnnxNode| {
            before.op == "Gemm" && before.inputs.len() == 2 && before.outputs.first() == node.inputs.first()
        };
        self.nodes.iter().any(is_gemm)
            && self.readers.has_one(&self.network.model, &node.inputs[0])
            && self.weights.contains_key(&node.inputs[1])
    }

    fn bias(&mut self, node: &OnnxNode) {
        let bias = weight_of(&self.weights, Some(&node.inputs[1]));
        let Some(at) = self.nodes.iter().position(|before| before.outputs[0] == node.inputs[0]) else { return };
        self.nodes[at].inputs.push(node.inputs[1].clone());
        self.nodes[at].outputs.clone_from(&node.outputs);
        self.layers.iter_mut().filter(|layer| layer.node == at).for_each(|layer| layer.bias = bias);
    }
}
