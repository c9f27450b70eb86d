//! Chooses the operators that read and compute codes, in one pass over the nodes.

use super::names::{Readers, is_output, weight_of, weights_by_name};
use super::plan::{StaticKind, StaticLayer, StaticPlan, StaticValue, ValueScale};
use crate::absorb::NormPlace;
use crate::graph::{ValueId, WeightId};
use crate::to_onnx::{OnnxNetwork, OnnxWeight, WeightBytes};
use briquette_core::{Error, OutputAxis, Result};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxData, OnnxNode};
use std::collections::BTreeMap;

/// Operators whose outputs have the codes of their input.
const SAME_CODES: [&str; 8] = ["MaxPool", "Reshape", "Transpose", "Pad", "Flatten", "Squeeze", "Unsqueeze", "Identity"];
/// Operators of codes with an output scale of their own, if all inputs are codes.
const OWN_SCALE: [&str; 5] = ["Add", "Mul", "GlobalAveragePool", "AveragePool", "Concat"];

/// Chooses the quantized values and layers.
///
/// # Errors
/// Bug: the input of a layer is no value of the graph.
pub(super) fn choose(network: OnnxNetwork, norms: &BTreeMap<WeightId, NormPlace>) -> Result<StaticPlan> {
    let ids = network.values.clone();
    let ranks = ranks(&network)?;
    let mut choice = QuantizedNodes {
        weights: weights_by_name(&network),
        readers: Readers::of(&network.model),
        network: &network,
        norms,
        ids,
        ranks,
        nodes: Vec::new(),
        is_quantized: Vec::new(),
        makers: BTreeMap::new(),
        values: Vec::new(),
        places: BTreeMap::new(),
        layers: Vec::new(),
    };
    for node in &network.model.nodes {
        choice.node(node.clone())?;
    }
    let QuantizedNodes { nodes, is_quantized, values, layers, .. } = choice;
    let mut network = network;
    network.model.nodes = nodes;
    Ok(StaticPlan { network, values, layers, is_quantized })
}

/// Returns the rank of each value with a name.
pub(super) fn ranks(network: &OnnxNetwork) -> Result<BTreeMap<String, usize>> {
    let shapes = network.graph.lower()?.shapes;
    Ok(network.values.iter().map(|(name, id)| (name.clone(), shapes[id.0].len())).collect())
}

/// The nodes, values and layers that were chosen so far.
struct QuantizedNodes<'a> {
    network: &'a OnnxNetwork,
    norms: &'a BTreeMap<WeightId, NormPlace>,
    weights: BTreeMap<String, OnnxWeight>,
    readers: Readers,
    ids: BTreeMap<String, ValueId>,
    ranks: BTreeMap<String, usize>,
    /// The nodes so far, and whether each is quantized.
    nodes: Vec<OnnxNode>,
    is_quantized: Vec<bool>,
    /// The node that computes each value.
    makers: BTreeMap<String, usize>,
    values: Vec<StaticValue>,
    /// The index of each quantized value, by name.
    places: BTreeMap<String, usize>,
    layers: Vec<StaticLayer>,
}

/// Returns whether a node is a linear layer whose matrix is `[out, in]`.
fn is_plain(node: &OnnxNode) -> bool {
    let is_one = |name| node.attribute(name).is_none_or(|value| *value == OnnxAttribute::Float(1.0));
    is_one("alpha") && is_one("beta") && node.int("transA", 0) == 0 && node.int("transB", 0) == 1
}

impl QuantizedNodes<'_> {
    fn node(&mut self, node: OnnxNode) -> Result<()> {
        match &*node.op.clone() {
            "Conv" => self.layer(node, StaticKind::Conv),
            "Gemm" if is_plain(&node) => self.layer(node, StaticKind::Gemm),
            "Pad" if !self.pads_zeros(&node) => self.float(node),
            "MatMul" => match self.linear_kind(&node) {
                Some(kind) => self.layer(node, kind),
                None => self.float(node),
            },
            "Add" if self.adds_bias(&node) => self.bias(&node),
            "Relu" | "Clip" if self.is_merged(&node) => self.merge(&node),
            "Sigmoid" if self.reads_codes(&node) => self.computed(node, ValueScale::Unit),
            op if SAME_CODES.contains(&op) && self.places.contains_key(&node.inputs[0]) => {
                let scale = ValueScale::Same(self.places[&node.inputs[0]]);
                self.computed(node, scale)
            }
            op if OWN_SCALE.contains(&op) && self.reads_codes(&node) => match self.ids.get(&node.outputs[0]) {
                Some(&id) => self.computed(node, ValueScale::Observed(id)),
                None => self.float(node),
            },
            _ => self.float(node),
        }
    }

    /// Adds a node; its output is not quantized.
    fn push(&mut self, node: OnnxNode, is_quantized: bool) {
        self.makers.extend(node.outputs.iter().map(|name| (name.clone(), self.nodes.len())));
        self.nodes.push(node);
        self.is_quantized.push(is_quantized);
    }

    fn float(&mut self, node: OnnxNode) -> Result<()> {
        self.push(node, false);
        Ok(())
    }

    /// Adds a quantized node. Outputs of the model stay floats.
    fn computed(&mut self, node: OnnxNode, scale: ValueScale) -> Result<()> {
        let name = node.outputs[0].clone();
        self.push(node, true);
        if !is_output(&self.network.model, &name) {
            self.quantize(name, scale, false);
        }
        Ok(())
    }

    fn quantize(&mut self, name: String, scale: ValueScale, is_float: bool) -> usize {
        self.places.insert(name.clone(), self.values.len());
        let id = self.ids.get(&name).copied();
        self.values.push(StaticValue { name, id, scale, is_float });
        self.values.len() - 1
    }

    /// Returns the place of an input of a layer, which becomes quantized if it is not yet.
    fn input(&mut self, name: &str) -> Result<usize> {
        if let Some(&place) = self.places.get(name) {
            return Ok(place);
        }
        let id =
            *self.ids.get(name).ok_or_else(|| Error::bug("the input of a layer is no value of the graph").at(name))?;
        Ok(self.quantize(name.to_string(), ValueScale::Observed(id), true))
    }

    fn reads_codes(&self, node: &OnnxNode) -> bool {
        node.inputs.iter().all(|name| self.places.contains_key(name))
    }

    /// Adds a layer with int8 weights.
    fn layer(&mut self, mut node: OnnxNode, kind: StaticKind) -> Result<()> {
        let Some(weight) = weight_of(&self.weights, node.inputs.get(1)) else { return self.float(node) };
        let bias = node.inputs.get(2).filter(|name| !name.is_empty());
        let (has_bias, bias) = (bias.is_some(), weight_of(&self.weights, bias));
        if has_bias && bias.is_none() || !self.has_value(&node.inputs[0]) {
            return self.float(node);
        }
        let input = self.input(&node.inputs[0])?;
        let norm = self.norms.get(&weight).filter(|_| kind == StaticKind::Conv).cloned();
        if kind == StaticKind::Gemm && node.op != "Gemm" {
            node.carried = None;
            node.op = "Gemm".into();
            node.attributes = vec![("transB".into(), OnnxAttribute::Int(1))];
        }
        self.layers.push(StaticLayer { kind, weight, bias, norm, input, node: self.nodes.len() });
        let id = self.ids.get(&node.outputs[0]).copied();
        match (kind, id) {
            (StaticKind::MatMul, _) => {
                self.push(node, true);
                Ok(())
            }
            (_, Some(id)) => self.computed(node, ValueScale::Observed(id)),
            // The bias is added by the next node, whose output has an id.
            (_, None) => {
                self.push(node, true);
                Ok(())
            }
        }
    }

    /// Returns the operator of a linear layer: none if its matrix is no weight `[in, out]` of the model.
    fn linear_kind(&self, node: &OnnxNode) -> Option<StaticKind> {
        let weight = self.weights.get(node.inputs.get(1)?)?;
        let own = &self.network.graph.weights[weight.weight.0];
        let is_by_input = match weight.bytes {
            WeightBytes::TransposedFloats => true,
            WeightBytes::Stored => own.layout == OutputAxis::Last && own.shape.rank() == 2,
            _ => false,
        };
        is_by_input.then_some(())?;
        let rank = *self.ranks.get(&node.inputs[0])?;
        self.ids.get(&node.inputs[0])?;
        Some(if rank == 2 { StaticKind::Gemm } else { StaticKind::MatMul })
    }

    /// Returns whether a node adds the bias of the `Gemm` before it.
    fn adds_bias(&self, node: &OnnxNode) -> bool {
        let maker = self.makers.get(&node.inputs[0]).map(|&at| &self.nodes[at]);
        let is_gemm = maker.is_some_and(|maker| maker.op == "Gemm" && maker.inputs.len() == 2);
        is_gemm
            && self.readers.has_one(&self.network.model, &node.inputs[0])
            && self.weights.contains_key(&node.inputs[1])
    }

    fn bias(&mut self, node: &OnnxNode) -> Result<()> {
        let at = self.makers[&node.inputs[0]];
        let name = node.outputs[0].clone();
        self.nodes[at].inputs.push(node.inputs[1].clone());
        self.nodes[at].outputs = vec![name.clone()];
        self.makers.insert(name.clone(), at);
        if let Some(layer) = self.layers.iter_mut().find(|layer| layer.node == at) {
            layer.bias = weight_of(&self.weights, Some(&node.inputs[1]));
        }
        match self.ids.get(&name) {
            Some(&id) if !is_output(&self.network.model, &name) => {
                self.quantize(name, ValueScale::Observed(id), false);
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(Error::bug("the output of a linear layer is no value of the graph").at(name)),
        }
    }

    /// Returns whether an activation becomes the lower bound of the range of the operator before it.
    fn is_merged(&self, node: &OnnxNode) -> bool {
        let input = &node.inputs[0];
        let is_own = |place: &usize| {
            matches!(self.values[*place].scale, ValueScale::Observed(_)) && !self.values[*place].is_float
        };
        self.places.get(input).is_some_and(is_own)
            && self.readers.has_one(&self.network.model, input)
            && !is_output(&self.network.model, &node.outputs[0])
            && self.ids.contains_key(&node.outputs[0])
            && (node.op == "Relu" || self.is_zero(node.inputs.get(1)))
    }

    /// Returns whether the graph computes a value, whose range can be observed.
    fn has_value(&self, name: &str) -> bool {
        self.places.contains_key(name) || self.ids.contains_key(name)
    }

    /// Returns whether a node pads with zeros.
    fn pads_zeros(&self, node: &OnnxNode) -> bool {
        let mode = node.attribute("mode");
        let is_constant = mode.is_none_or(|mode| matches!(mode, OnnxAttribute::Text(name) if name == "constant"));
        is_constant && node.inputs.get(2).is_none_or(|value| value.is_empty() || self.is_zero(Some(value)))
    }

    fn is_zero(&self, name: Option<&String>) -> bool {
        let zero = 0.0_f32.to_le_bytes();
        let model = &self.network.model;
        let tensor = model.tensors.iter().find(|tensor| Some(&tensor.name) == name);
        let is_zero_tensor =
            tensor.is_some_and(|tensor| matches!(&tensor.data, OnnxData::Inline(bytes) if bytes.as_slice() == zero));
        let node = model.nodes.iter().find(|node| node.op == "Constant" && node.outputs.first() == name);
        is_zero_tensor
            || node.is_some_and(|node| match node.attribute("value").or_else(|| node.attribute("value_float")) {
                Some(OnnxAttribute::Elements(values)) => *values == [0.0],
                Some(OnnxAttribute::Float(value)) => *value == 0.0,
                _ => false,
            })
    }

    fn merge(&mut self, node: &OnnxNode) -> Result<()> {
        let (input, name) = (&node.inputs[0], node.outputs[0].clone());
        let (at, place) = (self.makers[input], self.places[input]);
        self.nodes[at].outputs = vec![name.clone()];
        self.makers.insert(name.clone(), at);
        self.values[place].scale = ValueScale::Observed(self.ids[&name]);
        self.values[place].id = Some(self.ids[&name]);
        self.values[place].name.clone_from(&name);
        self.places.remove(input);
        self.places.insert(name, place);
        Ok(())
    }
}
