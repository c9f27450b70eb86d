//! Functions of a file. Each call gets the nodes of its function as a graph in an attribute, as `If` has its branches.

use briquette_core::{Error, Result};
use briquette_formats::InputFile;
use briquette_formats::onnx::{Attribute, AttributeValue, Model, Node, OnnxFunction, OnnxGraph, ValueInfo};
use std::collections::BTreeMap;

/// The attribute of a call with the nodes of its function. No exporter writes names with spaces.
pub(super) const BODY: &str = "function body";

/// Deepest nesting of calls.
const MAX_CALLS: usize = 16;

/// Most memory of the nodes of all calls together.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Reads the structure of a model, with the nodes of a function in each node that calls it.
///
/// # Errors
/// - Input: functions call themselves, are nested more than 16 deep, or the nodes of all calls need more than 16 MiB.
/// - Errors of [`Model::read`].
pub(super) fn read_model(file: &InputFile) -> Result<Model> {
    let mut model = Model::read(file)?;
    let functions = std::mem::take(&mut model.functions);
    let mut calls = Calls { functions: BTreeMap::new(), left: MAX_BODY_BYTES };
    for function in &functions {
        calls.functions.insert([&function.domain, &function.name, &function.overload], function);
    }
    if !calls.functions.is_empty() {
        calls.expand(&mut model.graph, 0).map_err(|error| error.at(file.path().display()))?;
    }
    model.functions = functions;
    Ok(model)
}

struct Calls<'a> {
    /// Functions by domain, name and overload.
    functions: BTreeMap<[&'a str; 3], &'a OnnxFunction>,
    /// Bytes that are left for the nodes of further calls.
    left: usize,
}

impl Calls<'_> {
    /// Adds the nodes of functions to the calls in a graph. `depth` counts the calls around it.
    fn expand(&mut self, graph: &mut OnnxGraph, depth: usize) -> Result<()> {
        for node in &mut graph.nodes {
            for attribute in &mut node.attributes {
                if let AttributeValue::Graph(inner) = &mut attribute.value {
                    self.expand(inner, depth)?;
                }
            }
            let found = self.functions.get(&[node.domain.as_str(), &node.op_type, &node.overload]);
            let Some(function) = found.copied() else { continue };
            let at = |error: Error| error.at(format_args!("node {:?} ({})", node.name, node.op_type));
            if depth == MAX_CALLS {
                let message = format!("found functions that call each other more than {MAX_CALLS} deep");
                return Err(at(Error::input(message + "; the file is damaged")));
            }
            let Some(left) = self.left.checked_sub(body_bytes(function, node)) else {
                let limit = MAX_BODY_BYTES >> 20;
                return Err(at(Error::input(format!(
                    "the nodes of all calls of functions need more than {limit} MiB"
                ))));
            };
            self.left = left;
            let mut body = body_of(function, node);
            self.expand(&mut body, depth + 1)?;
            node.attributes.push(Attribute { name: BODY.into(), value: AttributeValue::Graph(Box::new(body)) });
        }
        Ok(())
    }
}

/// Returns the nodes of a function with the attributes of a call. Inputs that the call leaves out are absent.
fn body_of(function: &OnnxFunction, call: &Node) -> OnnxGraph {
    let name = |name: &String| ValueInfo { name: name.clone(), ..ValueInfo::default() };
    let mut body = OnnxGraph {
        nodes: function.nodes.clone(),
        inputs: function.inputs.iter().map(name).collect(),
        outputs: function.outputs.iter().map(name).collect(),
        ..OnnxGraph::default()
    };
    let is_given = |at: usize| call.inputs.get(at).is_some_and(|name| !name.is_empty());
    let absent: Vec<&str> =
        (0..function.inputs.len()).filter(|&at| !is_given(at)).map(|at| function.inputs[at].as_str()).collect();
    fit(&mut body, function, call, &absent);
    body
}

/// Gives the nodes of a graph the attributes of a call, and removes inputs that are absent.
fn fit(graph: &mut OnnxGraph, function: &OnnxFunction, call: &Node, absent: &[&str]) {
    for node in &mut graph.nodes {
        node.inputs.iter_mut().filter(|name| absent.contains(&name.as_str())).for_each(String::clear);
        node.attributes.retain_mut(|attribute| match &mut attribute.value {
            AttributeValue::OfFunction(name) => {
                let default = || function.defaults.iter().find(|one| one.name == *name).map(|one| &one.value);
                match call.attribute(name).or_else(default).cloned() {
                    Some(value) => attribute.value = value,
                    None => return false,
                }
                true
            }
            AttributeValue::Graph(inner) => {
                fit(inner, function, call, absent);
                true
            }
            _ => true,
        });
    }
}

/// Roughly the memory of the nodes of a call, or more.
fn body_bytes(function: &OnnxFunction, call: &Node) -> usize {
    let defaults: usize = function.defaults.iter().map(|default| attribute_bytes(default, 0)).sum();
    let given = node_bytes(call, 0).saturating_add(defaults);
    function.nodes.iter().fold(0, |sum: usize, node| sum.saturating_add(node_bytes(node, given)))
}

/// Roughly the memory of a node. An attribute of the function around it counts as all attributes of the call.
fn node_bytes(node: &Node, given: usize) -> usize {
    let names: usize = node.inputs.iter().chain(&node.outputs).map(|name| size_of::<String>() + name.len()).sum();
    let own = size_of::<Node>() + names + node.name.len();
    node.attributes.iter().fold(own, |sum, attribute| sum.saturating_add(attribute_bytes(attribute, given)))
}

fn attribute_bytes(attribute: &Attribute, given: usize) -> usize {
    let value = match &attribute.value {
        AttributeValue::Bytes(bytes) => bytes.len(),
        AttributeValue::Floats(floats) => size_of_val(floats.as_slice()),
        AttributeValue::Ints(ints) => size_of_val(ints.as_slice()),
        AttributeValue::Texts(texts) => texts.iter().map(|text| size_of::<Vec<u8>>() + text.len()).sum(),
        AttributeValue::Tensor(tensor) => size_of_val(tensor.shape.as_slice()) + tensor.name.len(),
        AttributeValue::Graph(graph) => {
            let nodes = graph.nodes.iter();
            nodes.fold(size_of::<OnnxGraph>(), |sum, node| sum.saturating_add(node_bytes(node, given)))
        }
        AttributeValue::OfFunction(_) => given,
        _ => 0,
    };
    value.saturating_add(size_of::<Attribute>() + attribute.name.len())
}
