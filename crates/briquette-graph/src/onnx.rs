//! Turns an ONNX model into a graph.
//!
//! Operators become primitives, and composites where ONNX has them. Values that follow from constants and shapes are computed, so
//! reshapes by computed shapes have static extents. An operator without a rule keeps its name and fixes all axes.
//!
//! Opsets 11 to 28 of the operators that exporters write are known. Functions of a file and graphs inside nodes are operators
//! without a rule, except `If` with a known condition. A graph for running has rules for every `If`, and for recurrent layers.

mod attributes;
mod constant_math;
mod einsum;
mod element_wise;
mod fold;
mod importer;
mod input_shapes;
mod inputs;
mod item;
mod layers;
mod layout;
mod operators;
mod pools;
mod ranges;
mod recognise;
mod recurrent;
mod resize;
mod runnable;
mod scatter;
mod types;
mod unknown;
mod walk;

pub use input_shapes::InputDims;
pub use runnable::RunnableModel;

use crate::graph::Graph;
use crate::unused::remove_unused;
use briquette_core::Result;
use briquette_formats::InputFile;
use briquette_formats::onnx::Model;

/// Builds and checks the graph of an ONNX file.
///
/// # Errors
/// - Input: the file is damaged, or a node uses a value that no earlier node computes.
/// - Input: an output has no static shape, or see [`Graph::lower`].
/// - Config: `dims` names an extent that no input has.
/// - Io: a file cannot be read.
pub fn import(file: &InputFile, dims: &InputDims) -> Result<Graph> {
    imported(file, &Model::read(file)?, dims, false)
}

/// Builds and checks the graph of a model; `runs` as in [`Importer`](importer::Importer).
fn imported(file: &InputFile, model: &Model, dims: &InputDims, runs: bool) -> Result<Graph> {
    let mut graph = walk::run(file, model, dims, runs)?;
    recognise::recognise(&mut graph);
    remove_unused(&mut graph);
    graph.lower()?;
    Ok(graph)
}
