//! Walks the nodes of an ONNX graph in their order.

use super::fold;
use super::importer::{Importer, MAX_KNOWN};
use super::input_shapes::InputDims;
use super::item::Item;
use super::{operators, unknown};
use crate::graph::Graph;
use briquette_core::{DType, Error, Result};
use briquette_formats::InputFile;
use briquette_formats::onnx::{self, AttributeValue, Model, Tensor};
use std::collections::BTreeSet;

/// Deepest nesting of graphs in `If` nodes.
const MAX_BRANCHES: usize = 8;

/// Builds the graph of a model.
///
/// # Errors
/// See [`import`](super::import).
pub(super) fn run(file: &InputFile, model: &Model, dims: &InputDims) -> Result<Graph> {
    dims.check(&model.graph)?;
    let mut to = Importer::new(file, model);
    to.add_tensors(&model.graph);
    let is_given: BTreeSet<&str> = model.graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
    for input in model.graph.inputs.iter().filter(|input| !is_given.contains(input.name.as_str())) {
        to.add_input(input, dims)?;
    }
    nodes(&mut to, &model.graph, 0)?;
    for output in &model.graph.outputs {
        let item = to.item(&output.name).cloned().ok_or_else(|| missing(&output.name).at("the outputs"))?;
        let value = to.output_value(&output.name, &item)?;
        to.graph.outputs.push(value);
    }
    to.graph.unused = to.unused();
    Ok(to.graph)
}

/// Imports the nodes of a graph.
fn nodes<'a>(to: &mut Importer<'a>, graph: &'a onnx::OnnxGraph, depth: usize) -> Result<()> {
    for node in &graph.nodes {
        let first = node.outputs.iter().find(|name| !name.is_empty());
        to.begin(if node.name.is_empty() { first.cloned().unwrap_or_default() } else { node.name.clone() });
        let at = || format!("node {:?} ({})", node.name, node.op_type);
        let inputs = inputs(to, node).map_err(|error| error.at(at()))?;
        let found: Vec<Item> = if let Some(branch) = branch(to, node, &inputs).filter(|_| depth < MAX_BRANCHES) {
            to.add_tensors(branch);
            nodes(to, branch, depth + 1)?;
            let output =
                |output: &onnx::ValueInfo| to.item(&output.name).cloned().ok_or_else(|| missing(&output.name).at(at()));
            branch.outputs.iter().map(output).collect::<Result<_>>()?
        } else if let Some((name, tensor)) = constant_tensor(node) {
            to.add_tensor(name, tensor);
            continue;
        } else {
            let found = fold::folded(to, node, &inputs).or_else(|| operators::import(to, node, &inputs));
            found.unwrap_or_else(|| unknown::import(to, node, &inputs))
        };
        for (name, item) in node.outputs.iter().zip(found).filter(|(name, _)| !name.is_empty()) {
            to.bind(name, item).map_err(|error| error.at(at()))?;
        }
    }
    Ok(())
}

/// Returns the items of the inputs of a node; none where an optional input is absent.
fn inputs(to: &Importer, node: &onnx::Node) -> Result<Vec<Option<Item>>> {
    let input = |name: &String| match to.item(name) {
        None if !name.is_empty() => Err(missing(name)),
        item => Ok(item.cloned()),
    };
    node.inputs.iter().map(input).collect()
}

/// Returns the branch of an `If` node whose condition is known.
fn branch<'a>(to: &Importer, node: &'a onnx::Node, inputs: &[Option<Item>]) -> Option<&'a onnx::OnnxGraph> {
    if node.op_type != "If" || !node.domain.is_empty() {
        return None;
    }
    let condition = to.known(inputs.first()?.as_ref()?)?;
    let name = if *condition.values.first()? == 0.0 { "else_branch" } else { "then_branch" };
    match node.attribute(name)? {
        AttributeValue::Graph(graph) => Some(graph),
        _ => None,
    }
}

fn missing(name: &str) -> Error {
    Error::input(format!(
        "uses {name:?}, which no node before it computes; the nodes form a cycle, or the file is damaged"
    ))
}

/// Returns the tensor of a constant that counts as a weight, as the reader of checkpoints does.
fn constant_tensor(node: &onnx::Node) -> Option<(&str, &Tensor)> {
    match (node.attribute("value")?, node.outputs.as_slice()) {
        (AttributeValue::Tensor(tensor), [name]) if node.op_type == "Constant" && node.domain.is_empty() => {
            let is_weight = tensor.dtype().is_some_and(DType::is_weight) && tensor.shape.len() > 1;
            let is_weight = is_weight || tensor.n_elements().is_none_or(|n| n > MAX_KNOWN);
            is_weight.then_some((name.as_str(), tensor))
        }
        _ => None,
    }
}
