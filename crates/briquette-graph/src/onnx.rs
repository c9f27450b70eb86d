//! Turns an ONNX model into a graph.
//!
//! Operators become primitives, and composites where ONNX has them. Values that follow from constants and shapes are computed, so
//! reshapes by computed shapes have static extents. An operator without a rule keeps its name and fixes all axes.
//!
//! Opsets 11 to 28 of the operators that exporters write are known. A call of a function of the file becomes the nodes of the
//! function. Graphs inside nodes are operators without a rule, except `If` with a known condition. A graph for running has rules for
//! every `If`, for recurrent layers, and for loops. A number of iterations that the model computes is a question: see [`ImportedGraph`].

mod attributes;
mod constant_math;
mod einsum;
mod element_wise;
mod fold;
mod functions;
mod given_tensor;
mod imported;
mod importer;
mod input_shapes;
mod inputs;
mod item;
mod layers;
mod layout;
mod loops;
mod operators;
mod pools;
mod quantized;
mod questions;
mod ranges;
mod recognise;
mod recurrent;
mod resize;
mod runnable;
mod scatter;
mod top;
mod types;
mod unknown;
mod walk;

pub use imported::ImportedGraph;
pub use input_shapes::InputDims;
pub use runnable::RunnableModel;

use crate::graph::{Graph, ValueId};
use crate::unused::remove_unused;
use briquette_core::Result;
use briquette_formats::InputFile;
use briquette_formats::onnx::Model;
use std::collections::BTreeSet;

/// Builds and checks the graph of an ONNX file.
///
/// # Errors
/// - Input: the file is damaged, or a node uses a value that no earlier node computes.
/// - Input: an output has no static shape, or see [`Graph::lower`].
/// - Config: `dims` names an extent that no input has.
/// - Io: a file cannot be read.
pub fn import(file: &InputFile, dims: &InputDims) -> Result<Graph> {
    Ok(imported(file, &functions::read_model(file)?, dims, false)?.graph)
}

/// Like [`import`], with the names of values.
///
/// # Errors
/// See [`import`].
pub fn import_named(file: &InputFile, dims: &InputDims) -> Result<ImportedGraph> {
    imported(file, &functions::read_model(file)?, dims, false)
}

/// Builds and checks the graph of a model; `runs` as in [`Importer`](importer::Importer).
fn imported(file: &InputFile, model: &Model, dims: &InputDims, runs: bool) -> Result<ImportedGraph> {
    let ImportedGraph { mut graph, mut names, question } = walk::run(file, model, dims, runs)?;
    recognise::recognise(&mut graph);
    remove_unused(&mut graph);
    graph.lower()?;
    let inputs = graph.inputs.iter().map(|input| input.value);
    let computed: BTreeSet<ValueId> = graph.nodes.iter().flat_map(|node| node.outputs.clone()).chain(inputs).collect();
    names.retain(|_, value| computed.contains(value));
    Ok(ImportedGraph { graph, names, question })
}
