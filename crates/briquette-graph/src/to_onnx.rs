//! Networks as ONNX models: every operation of a graph as operators of ONNX's standard set.
//!
//! [`to_onnx`] returns nodes, constants, inputs and outputs. The bytes of weights stay with the checkpoint: each streamed tensor
//! refers to an [`OnnxWeight`], which says how its bytes follow from the weight. Inputs and outputs have the names of
//! transformers' own exports: `input_ids`, `attention_mask`, `token_type_ids`, `pixel_values`; `last_hidden_state`,
//! `pooler_output`, `logits`. Batch, sequence, height and width are dynamic where the network allows it.
//!
//! Positions, masks and rotary angles are computed in the model. Operators need opset 13, and opset 17 for layer norms.

mod attention;
mod coded_nodes;
mod dims;
mod emitter;
mod experts;
mod factors;
mod file_network;
mod functions;
mod grids;
mod half_floats;
mod inputs;
mod linear;
mod masks;
mod norms;
mod operations;
mod outputs;
mod reshape;
mod rotary;
mod same_padding;
mod smaller_nodes;
mod spatial;
pub mod static_int8;
mod text_inputs;
mod unused_nodes;
mod weights;

pub use coded_nodes::with_codes;
pub use factors::with_factors;
pub use file_network::file_network;
pub use half_floats::{holds_number, with_half_floats};
pub use smaller_nodes::with_extents;
pub use weights::{LinearForm, OnnxFloat, OnnxWeight, TableForm, WeightBytes, WeightForms};

use crate::families::Extents;
use crate::graph::{Graph, ValueId};
use briquette_core::Result;
use briquette_formats::onnx_write::OnnxModel;
use dims::SymbolicGraph;
use emitter::Emitter;
use std::collections::BTreeMap;

/// A network as an ONNX model, and the weights that its streamed tensors have.
#[derive(Debug, Clone, PartialEq)]
pub struct OnnxNetwork {
    /// The model. [`Streamed`](briquette_formats::onnx_write::OnnxData::Streamed) is an index of `weights`.
    pub model: OnnxModel,
    /// The weight of each streamed tensor.
    pub weights: Vec<OnnxWeight>,
    /// The graph that the weights belong to.
    pub graph: Graph,
    /// The values of the graph by their names in the model.
    pub values: BTreeMap<String, ValueId>,
}

/// Converts a network to ONNX.
///
/// `build` builds the network's graph for an example. It runs several times, with other extents each time: a shape that changes
/// with the batch, the tokens or the image becomes dynamic.
///
/// # Errors
/// - Input: an operation has no form in ONNX. The error names the node.
/// - Errors of `build`.
pub fn to_onnx(
    build: &dyn Fn(Extents) -> Result<Graph>,
    float: OnnxFloat,
    forms: &dyn WeightForms,
) -> Result<OnnxNetwork> {
    let symbolic = SymbolicGraph::new(build)?;
    let mut emitter = Emitter::new(&symbolic, float, forms);
    inputs::add(&mut emitter)?;
    for id in symbolic.order() {
        operations::add(&mut emitter, id)?;
    }
    outputs::add(&mut emitter);
    let (model, weights, values) = emitter.finish();
    // If several values have one name, the map keeps the last, which is computed last.
    let named = |(id, name): (usize, Option<String>)| Some((name?, ValueId(id)));
    let values = values.into_iter().enumerate().filter_map(named).collect();
    Ok(OnnxNetwork { model, weights, graph: symbolic.graph, values })
}
