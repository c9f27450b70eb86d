//! Static int8: quantizes convolutions and linear layers of an ONNX model with fixed scales of activations.
//!
//! [`plan()`] chooses the quantized operators. It folds batch norms into convolutions, and merges ReLU and ReLU6 into the
//! range of the operator before them. A caller observes the values and computes codes; [`finish`] then writes pairs of
//! `QuantizeLinear` and `DequantizeLinear` (QDQ), which onnxruntime fuses to `QLinearConv`, `QLinearAdd` and `QGemm`.
//!
//! Activations are uint8 with one scale for each value, weights are int8 with a scale for each output channel, and biases are int32 with
//! the product of both scales.

mod check;
mod choose;
mod fold;
mod insert;
mod names;
mod paired;
mod plan;
mod prune;
mod writer;

pub(super) use names::weights_by_name;
pub use paired::{PairedPlan, paired};
pub use plan::{ActivationScale, LayerCodes, StaticKind, StaticLayer, StaticPlan, StaticValue, ValueScale};
pub use writer::outputs_first;

pub(super) use prune::without_unused;

use super::OnnxNetwork;
use crate::graph::Graph;
use crate::op::{Composite, Op, Primitive};
use briquette_core::{Error, Result};
use briquette_formats::onnx_write::OnnxModel;
use std::collections::BTreeSet;

/// The first operators with scales of rows.
const OPSET_OF_ROW_SCALES: i64 = 13;

/// Chooses the quantized values and layers of a float model.
///
/// # Errors
/// Config: the network has no convolution, or attention.
pub fn plan(mut network: OnnxNetwork) -> Result<StaticPlan> {
    check_convolutional(&network.graph)?;
    check_attention_nodes(&network)?;
    let norms = fold::fold_norms(&mut network, &|_| true);
    choose::choose(network, &norms)
}

/// Returns the quantized model. `scales` has an entry for each value, `codes` for each layer.
///
/// # Errors
/// Bug: a quantized operator would read or compute floats.
pub fn finish(plan: StaticPlan, scales: &[ActivationScale], codes: &[LayerCodes]) -> Result<OnnxNetwork> {
    let (mut network, matrices) = insert::insert(plan, scales, codes);
    prune::remove_unread_constants(&mut network.model);
    let network = without_unused(network);
    if network.model.opset < OPSET_OF_ROW_SCALES {
        let message =
            format!("found opset {}, expected {OPSET_OF_ROW_SCALES} or more for int8-static", network.model.opset);
        return Err(Error::config(format!("{message}; export the model again")));
    }
    check::check(&network.model, &matrices)?;
    Ok(network)
}

/// Returns whether a product of values reads a softmax, as attention of an ONNX file does.
fn has_attention_nodes(model: &OnnxModel) -> bool {
    let softmax = model.nodes.iter().filter(|node| node.op == "Softmax").flat_map(|node| &node.outputs);
    let softmax: BTreeSet<&String> = softmax.collect();
    model.nodes.iter().any(|node| node.op == "MatMul" && node.inputs.iter().any(|name| softmax.contains(name)))
}

/// Refuses networks that run faster or better with dynamic scales.
///
/// # Errors
/// Config: the network has attention, or no convolution.
pub fn check_convolutional(graph: &Graph) -> Result<()> {
    let has = |is_it: &dyn Fn(&Op) -> bool| graph.nodes.iter().any(|node| is_it(&node.op));
    let has_attention = has(&|op| matches!(op, Op::Composite(Composite::Attention(_))));
    let has_conv = has(&|op| matches!(op, Op::Primitive(Primitive::Conv(_))));
    match (has_conv, has_attention) {
        (true, false) => Ok(()),
        (_, true) => Err(unsuitable(graph, "attention")),
        (false, false) => Err(unsuitable(graph, "no convolution")),
    }
}

fn check_attention_nodes(network: &OnnxNetwork) -> Result<()> {
    match has_attention_nodes(&network.model) {
        true => Err(unsuitable(&network.graph, "attention")),
        false => Ok(()),
    }
}

fn unsuitable(graph: &Graph, found: &str) -> Error {
    let family = &graph.family;
    let message = format!("found {family} with {found}, expected a convolutional network for int8-static");
    Error::config(format!("{message}; use --quantize int8-dynamic"))
}
