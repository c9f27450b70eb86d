//! ONNX models whose graphs are run: with the values of constants, and one graph for each shape of the inputs.

use super::functions::read_model;
use super::imported::ImportedGraph;
use super::importer::is_integer_type;
use super::input_shapes::InputDims;
use crate::graph::{Graph, InputSource};
use briquette_core::{Error, Result};
use briquette_formats::InputFile;
use briquette_formats::onnx::{Dim, Model, ValueInfo};
use std::collections::BTreeSet;

/// Operators whose scales and types the graph leaves out, so that it cannot be run.
const INEXACT: [&str; 7] =
    ["ConvInteger", "QLinearConv", "MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear", "LpPool", "Upsample"];

/// A model whose graph can be built for any shape of its inputs.
#[derive(Debug)]
pub struct RunnableModel {
    file: InputFile,
    model: Model,
}

impl RunnableModel {
    /// Reads the structure of a model.
    ///
    /// # Errors
    /// - Config: an operator cannot be run; the error names it.
    /// - Errors of [`Model::read`].
    pub fn read(file: InputFile) -> Result<Self> {
        let model = read_model(&file)?;
        let is_inexact = |name: &str| INEXACT.contains(&name) || name.starts_with("QLinear");
        if let Some(node) = model.graph.all_nodes().into_iter().find(|node| is_inexact(&node.op_type)) {
            let message = if node.op_type.contains("Linear") || node.op_type.contains("Integer") {
                let message = "which cannot be run; use the model in floats, or with QDQ pairs";
                format!("found a quantized operator {:?}, {message}", node.op_type)
            } else {
                format!("found operator {:?}, which cannot be run", node.op_type)
            };
            return Err(Error::config(message).at(format_args!("node {:?}", node.name)));
        }
        Ok(Self { file, model })
    }

    /// Builds the graph for inputs of these shapes, in the order of its inputs.
    ///
    /// # Errors
    /// See [`import`](super::import).
    pub fn graph(&self, dims: &InputDims) -> Result<Graph> {
        Ok(self.named_graph(dims)?.graph)
    }

    /// Like [`graph`](Self::graph), with the names of values.
    ///
    /// # Errors
    /// See [`import`](super::import).
    pub fn named_graph(&self, dims: &InputDims) -> Result<ImportedGraph> {
        let ImportedGraph { mut graph, names, question } = super::imported(&self.file, &self.model, dims, true)?;
        for at in 0..graph.inputs.len() {
            let source = self.given().get(at).map_or(InputSource::Caller, |info| source_of(info));
            let is_new = graph.inputs[..at].iter().all(|input| input.source != source);
            graph.inputs[at].source = if is_new { source } else { InputSource::Caller };
        }
        Ok(ImportedGraph { graph, names, question })
    }

    /// Returns the inputs that a caller gives.
    pub fn given(&self) -> Vec<&ValueInfo> {
        let graph = &self.model.graph;
        let tensors: BTreeSet<&str> = graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
        graph.inputs.iter().filter(|input| !tensors.contains(input.name.as_str())).collect()
    }

    /// Returns the positions of inputs that may choose branches or count iterations: single integers.
    pub fn numbers(&self) -> Vec<usize> {
        let mut nodes = self.model.graph.all_nodes().into_iter();
        let has_branches = nodes.any(|node| matches!(node.op_type.as_str(), "If" | "Loop"));
        let is_number = |input: &ValueInfo| {
            has_branches && is_integer_type(input.data_type) && input.shape.as_ref().is_some_and(Vec::is_empty)
        };
        self.given().into_iter().enumerate().filter(|(_, input)| is_number(input)).map(|(at, _)| at).collect()
    }

    /// Returns the names of the outputs.
    pub fn output_names(&self) -> Vec<&str> {
        self.model.graph.outputs.iter().map(|output| output.name.as_str()).collect()
    }
}

/// Returns how a program makes an input, by its name, type and rank.
fn source_of(input: &ValueInfo) -> InputSource {
    let (name, rank) = (input.name.as_str(), input.shape.as_ref().map_or(0, Vec::len));
    let is_float = matches!(input.data_type, 1 | 10 | 11 | 16);
    match (rank, is_float) {
        (4, true) => InputSource::Images,
        (2, false) if name.contains("mask") => InputSource::AttentionMask,
        (2, false) if name.contains("type_ids") || name.contains("segment") => InputSource::TokenTypeIds,
        (2, false) if name.contains("position") => InputSource::PositionIds { offset: 0, skips_padding: false },
        (2, false) if !name.contains("decoder") && !name.contains("label") => InputSource::TokenIds,
        _ => InputSource::Caller,
    }
}

/// Returns the fixed extent of an axis of an input.
pub(super) fn fixed(input: &ValueInfo, axis: usize) -> Option<usize> {
    match input.shape.as_ref()?.get(axis)? {
        Dim::Extent(extent) => Some(*extent),
        _ => None,
    }
}

impl RunnableModel {
    /// Returns the batch size that the file fixes, if it does.
    pub fn fixed_batch(&self) -> Option<usize> {
        self.given().into_iter().find_map(|input| fixed(input, 0))
    }

    /// Returns the number of tokens that the file fixes, if it does.
    pub fn fixed_tokens(&self) -> Option<usize> {
        self.given().into_iter().filter(|input| source_of(input) == InputSource::TokenIds).find_map(|ids| fixed(ids, 1))
    }
}
