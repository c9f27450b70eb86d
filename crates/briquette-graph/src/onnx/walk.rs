//! Walks the nodes of an ONNX graph in their order.

use super::fold;
use super::imported::ImportedGraph;
use super::importer::{Importer, MAX_KNOWN};
use super::input_shapes::InputDims;
use super::item::Item;
use super::questions::Questions;
use super::{element_wise, functions, loops, operators, types, unknown};
use briquette_core::{DType, Error, Result};
use briquette_formats::InputFile;
use briquette_formats::onnx::{self, AttributeValue, Model, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// Deepest nesting of graphs in `If` nodes.
const MAX_BRANCHES: usize = 8;

/// Builds the graph of a model.
///
/// # Errors
/// See [`import`](super::import).
pub(super) fn run(file: &InputFile, model: &Model, dims: &InputDims, runs: bool) -> Result<ImportedGraph> {
    dims.check(&model.graph)?;
    let mut to = Importer::new(file, model);
    to.runs = runs;
    if runs {
        to.coded = onnx::coded_weights(&model.graph, file)?;
    }
    to.questions = Questions::new(dims.answers.clone());
    to.add_tensors(&model.graph);
    let is_given: BTreeSet<&str> = model.graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
    for input in model.graph.inputs.iter().filter(|input| !is_given.contains(input.name.as_str())) {
        to.add_input(input, dims)?;
    }
    nodes(&mut to, &model.graph, 0)?;
    if let Some(question) = to.questions.open {
        to.graph.outputs.push(question);
        return Ok(ImportedGraph { names: BTreeMap::new(), graph: to.graph, question: Some(question) });
    }
    for output in &model.graph.outputs {
        let item = to.item(&output.name).cloned().ok_or_else(|| missing(&output.name).at("the outputs"))?;
        let value = to.output_value(&output.name, &item)?;
        to.graph.outputs.push(value);
    }
    to.graph.unused = to.unused();
    Ok(ImportedGraph { names: to.value_names(), graph: to.graph, question: None })
}

/// Imports the nodes of a graph.
fn nodes<'a>(to: &mut Importer<'a>, graph: &'a onnx::OnnxGraph, depth: usize) -> Result<()> {
    for node in &graph.nodes {
        let first = node.outputs.iter().find(|name| !name.is_empty());
        to.begin(if node.name.is_empty() { first.cloned().unwrap_or_default() } else { node.name.clone() });
        let at = || format!("node {:?} ({})", node.name, node.op_type);
        let inputs = inputs(to, node).map_err(|error| error.at(at()))?;
        let found: Vec<Item> =
            if let Some(found) = branches(to, node, &inputs, depth).map_err(|error| error.at(at()))? {
                found
            } else if let Some(found) = iterations(to, node, &inputs, depth).map_err(|error| error.at(at()))? {
                found
            } else if let Some((name, tensor)) = constant_tensor(node) {
                to.add_tensor(name, tensor, tensor.shape.len() > 1 && tensor.dtype().is_some_and(DType::is_weight));
                continue;
            } else {
                let found = fold::folded(to, node, &inputs).or_else(|| operators::import(to, node, &inputs));
                let found = match found {
                    None => called(to, node, &inputs, depth).map_err(|error| error.at(at()))?,
                    found => found,
                };
                let found = found.unwrap_or_else(|| unknown::import(to, node, &inputs));
                if types::gives_integers(to, node, &inputs) {
                    found.iter().for_each(|item| to.mark_integer(item));
                }
                found
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

/// Returns the outputs of an `If` node: of the branch that runs, or a choice between both branches.
///
/// Only a graph for running has a choice. It computes both branches.
fn branches<'a>(
    to: &mut Importer<'a>,
    node: &'a onnx::Node,
    inputs: &[Option<Item>],
    depth: usize,
) -> Result<Option<Vec<Item>>> {
    let condition = inputs.first().and_then(Option::as_ref);
    let (Some(condition), true) = (condition, node.op_type == "If" && node.domain.is_empty() && depth < MAX_BRANCHES)
    else {
        return Ok(None);
    };
    let known = to.known(condition).and_then(|condition| condition.values.first().map(|&value| value != 0.0));
    match known {
        Some(true) => branch(to, node, "then_branch", depth),
        Some(false) => branch(to, node, "else_branch", depth),
        None if !to.runs => Ok(None),
        None => {
            let (then, other) = (branch(to, node, "then_branch", depth)?, branch(to, node, "else_branch", depth)?);
            let (Some(then), Some(other)) = (then, other) else { return Ok(None) };
            Ok(then.iter().zip(&other).map(|(a, b)| element_wise::chosen(to, condition, a, b)).collect())
        }
    }
}

/// Returns the outputs of a `Loop` node in a graph for running.
fn iterations<'a>(
    to: &mut Importer<'a>,
    node: &'a onnx::Node,
    inputs: &[Option<Item>],
    depth: usize,
) -> Result<Option<Vec<Item>>> {
    if node.op_type != "Loop" || !node.domain.is_empty() || !to.runs || depth >= MAX_BRANCHES {
        return Ok(None);
    }
    loops::unrolled(to, node, inputs, &mut |to, body| nodes(to, body, depth + 1))
}

/// Imports a graph inside of a node, and returns its outputs; `None` if there is no such graph.
fn branch<'a>(
    to: &mut Importer<'a>,
    node: &'a onnx::Node,
    name: &'static str,
    depth: usize,
) -> Result<Option<Vec<Item>>> {
    let Some(AttributeValue::Graph(graph)) = node.attribute(name) else { return Ok(None) };
    let scope = to.enter(name);
    to.add_tensors(graph);
    nodes(to, graph, depth + 1)?;
    let found = outputs(to, &graph.outputs)?;
    to.leave(scope);
    Ok(Some(found))
}

/// Returns the items of the outputs of a graph inside of a node.
fn outputs(to: &Importer, outputs: &[onnx::ValueInfo]) -> Result<Vec<Item>> {
    outputs.iter().map(|output| to.item(&output.name).cloned().ok_or_else(|| missing(&output.name))).collect()
}

/// Returns the outputs of a call of a function of the file; `None` if the node is none.
fn called<'a>(
    to: &mut Importer<'a>,
    node: &'a onnx::Node,
    inputs: &[Option<Item>],
    depth: usize,
) -> Result<Option<Vec<Item>>> {
    let Some(AttributeValue::Graph(body)) = node.attribute(functions::BODY) else { return Ok(None) };
    let scope = to.enter_function();
    for (input, item) in body.inputs.iter().zip(inputs) {
        if let Some(item) = item {
            to.bind(&input.name, item.clone())?;
        }
    }
    nodes(to, body, depth)?;
    let n_used = body.outputs.len().min(node.outputs.len());
    let found = outputs(to, &body.outputs[..n_used])?;
    to.leave(scope);
    Ok(Some(found))
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
