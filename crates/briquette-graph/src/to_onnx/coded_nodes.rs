//! Replaces linear layers and tables of an ONNX file by forms with codes. Other nodes stay as they are.

use super::dims::SymbolicGraph;
use super::emitter::{Emitter, OPSET_OF_BLOCKS};
use super::linear;
use super::static_int8::{weights_by_name, without_unused};
use super::unused_nodes::{remove_unused, used_names};
use super::weights::{LinearForm, OnnxFloat, TableForm, WeightForms};
use super::{OnnxNetwork, OnnxWeight};
use crate::graph::WeightId;
use briquette_core::{DType, Error, OutputAxis, Result};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxNode};
use std::collections::BTreeMap;

/// The first operators with integer products.
const OPSET_OF_PRODUCTS: i64 = 11;
/// The first operators with scales of rows, and with axes as inputs.
const OPSET_OF_ROW_SCALES: i64 = 13;

/// Returns the network with the forms of its weights: `MatMul`, `Gemm` and `Gather` with a weight in codes are replaced.
///
/// # Errors
/// Config: the operators of the file are too old.
pub fn with_codes(network: OnnxNetwork, forms: &dyn WeightForms) -> Result<OnnxNetwork> {
    let weights = weights_by_name(&network);
    let OnnxNetwork { mut model, weights: streamed, graph, values } = network;
    let used = used_names(&model);
    let nodes = std::mem::take(&mut model.nodes);
    let turned = nodes.iter().filter_map(turned).collect();
    let symbolic = SymbolicGraph::fixed(graph)?;
    let float = float_of(&symbolic, &weights);
    let opset = model.opset;
    let emitter = Emitter::of_file(&symbolic, float, forms, model, streamed, &nodes);
    let mut to = CodedNodes { emitter, weights, turned };
    nodes.into_iter().for_each(|node| to.node(node));
    let (model, weights, _) = to.emitter.finish();
    let needs = |op: &str| model.nodes.iter().any(|node| node.carried.is_none() && node.op == op);
    let blocks =
        |node: &OnnxNode| node.carried.is_none() && node.attribute("block_size").is_some() && node.domain.is_empty();
    let oldest = if model.nodes.iter().any(blocks) {
        OPSET_OF_BLOCKS
    } else if needs("DequantizeLinear") || needs("Unsqueeze") {
        OPSET_OF_ROW_SCALES
    } else {
        OPSET_OF_PRODUCTS
    };
    if opset < oldest && model.nodes.iter().any(|node| node.carried.is_none()) {
        let message =
            format!("found opset {opset}, expected {oldest} or more for integer codes; export the model again");
        return Err(Error::config(message));
    }
    let mut found = OnnxNetwork { model, weights, graph: symbolic.graph, values };
    // Such as transposed matrices that now have codes.
    remove_unused(&mut found.model, &used);
    Ok(without_unused(found))
}

/// Returns the output of a node that transposes a matrix, and its input.
fn turned(node: &OnnxNode) -> Option<(String, String)> {
    let is_turn = node.op == "Transpose" && node.attribute("perm") == Some(&OnnxAttribute::Ints(vec![1, 0]));
    is_turn.then(|| (node.outputs[0].clone(), node.inputs[0].clone()))
}

/// The type of the model's floats: that of most matrices.
fn float_of(symbolic: &SymbolicGraph, weights: &BTreeMap<String, OnnxWeight>) -> OnnxFloat {
    let of = |weight: &OnnxWeight| &symbolic.graph.weights[weight.weight.0];
    let matrices = weights.values().map(of).filter(|weight| weight.shape.rank() == 2);
    let (half, others): (Vec<_>, Vec<_>) = matrices.partition(|weight| weight.dtype == DType::F16);
    if half.len() > others.len() { OnnxFloat::F16 } else { OnnxFloat::F32 }
}

struct CodedNodes<'a> {
    emitter: Emitter<'a>,
    weights: BTreeMap<String, OnnxWeight>,
    /// Transposed matrices, by the name of the result.
    turned: BTreeMap<String, String>,
}

/// A node with codes.
enum CodedNode {
    Linear(WeightId),
    Table(WeightId),
}

impl CodedNodes<'_> {
    fn node(&mut self, node: OnnxNode) {
        let Some(coded) = self.coded(&node) else { return self.emitter.model.nodes.push(node) };
        let name = if node.name.is_empty() { &node.outputs[0] } else { &node.name };
        self.emitter.enter(name);
        match coded {
            CodedNode::Table(weight) => linear::rows(&mut self.emitter, weight, &node.inputs[1]),
            CodedNode::Linear(weight) => {
                let product = linear::coded(&mut self.emitter, &node.inputs[0], weight);
                match node.inputs.get(2).filter(|bias| !bias.is_empty()) {
                    Some(bias) => self.emitter.plain("Add", &[&product, bias]),
                    None => product,
                }
            }
        };
        // The last operator computes what the node did.
        if let Some(last) = self.emitter.model.nodes.last_mut() {
            last.outputs.clone_from(&node.outputs);
        }
    }

    /// Returns what a node is, if its weight has codes.
    fn coded(&self, node: &OnnxNode) -> Option<CodedNode> {
        node.domain.is_empty().then_some(())?;
        let layout = |is_turned: bool| if is_turned { OutputAxis::First } else { OutputAxis::Last };
        match &*node.op {
            "MatMul" => {
                let name = node.inputs.get(1)?;
                let is_turned = self.turned.contains_key(name);
                self.layer(self.turned.get(name).unwrap_or(name), layout(is_turned))
            }
            "Gemm" => {
                let is_one = |name| node.attribute(name).is_none_or(|value| *value == OnnxAttribute::Float(1.0));
                let is_plain = is_one("alpha") && is_one("beta") && node.int("transA", 0) == 0;
                self.layer(node.inputs.get(1).filter(|_| is_plain)?, layout(node.int("transB", 0) == 1))
            }
            "Gather" if node.int("axis", 0) == 0 => {
                let (id, weight) = self.matrix(node.inputs.first()?)?;
                (self.emitter.forms.table(weight) != TableForm::Float).then_some(CodedNode::Table(id))
            }
            _ => None,
        }
    }

    fn layer(&self, name: &str, layout: OutputAxis) -> Option<CodedNode> {
        let (id, weight) = self.matrix(name)?;
        let is_coded = weight.layout == layout && self.emitter.forms.linear(weight) != LinearForm::Float;
        is_coded.then_some(CodedNode::Linear(id))
    }

    /// Returns a matrix of the model's type of floats.
    fn matrix(&self, name: &str) -> Option<(WeightId, &crate::graph::Weight)> {
        let id = self.weights.get(name)?.weight;
        let weight = &self.emitter.symbolic.graph.weights[id.0];
        let float = if self.emitter.float == OnnxFloat::F16 { DType::F16 } else { DType::F32 };
        (weight.shape.rank() == 2 && weight.dtype == float).then_some((id, weight))
    }
}
