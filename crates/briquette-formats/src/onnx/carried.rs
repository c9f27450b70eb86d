//! A model of a file for writing: weights are streamed from elsewhere, and everything else is carried as it is.

use super::calls::{CallScope, FunctionParts, GivenAttribute, OperatorKey, functions_with_weights, operator_of};
use super::copy::NetworkCopy;
use super::graph::{Attribute, AttributeValue, Node, OnnxGraph, ValueInfo};
use super::model::Model;
use super::skeleton::constant;
use super::tensor::{Tensor, TensorData, string_pair};
use super::wire::WireValue;
use crate::InputFile;
use crate::onnx_write::{
    CarriedModel, CarriedNode, OnnxAttribute, OnnxData, OnnxModel, OnnxNode, OnnxTensor, OnnxType, OnnxValue,
    WireMessage,
};
use briquette_core::{Error, Result, Shape};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The keys of metadata that a written model gets anew begin so.
const OUR_KEYS: &str = "briquette.";
/// Tensors of at most this many elements are in memory, so that shapes and bounds of ranges are known.
const MAX_ELEMENTS: usize = 64;
/// Deepest nesting of calls that become nodes.
const MAX_CALLS: usize = 16;

/// A weight whose elements come from elsewhere: its index there, and its shape. Its type is that of the file, as other nodes expect.
pub type StreamedWeight = (usize, Shape);

/// Reads a model for writing. `weights` are the tensors whose elements are streamed, by name.
///
/// Constants among the weights become initializers. Elements of external files that are no weights move into the model. Calls of functions
/// with products or look-ups become the nodes of the functions, so that their weights may be replaced.
///
/// # Errors
/// - Config: a weight has a type that is not written.
/// - Input: the model is damaged, or what it has beside weights is too large.
/// - Io: a file cannot be read.
pub fn carried_model(file: &InputFile, weights: &BTreeMap<String, StreamedWeight>) -> Result<OnnxModel> {
    let model = Model::read(file)?;
    let mut found = OnnxModel { opset: model.opset(), name: model.graph.name.clone(), ..OnnxModel::default() };
    let mut carried = CarriedModel { ir_version: model.ir_version.cast_signed(), ..CarriedModel::default() };
    carried.domains =
        model.opsets.iter().filter(|(domain, _)| !domain.is_empty()).map(|(d, v)| (d.clone(), *v)).collect();
    let is_given = |name: &str| model.graph.initializers.iter().any(|tensor| tensor.name == name);
    let mut copy = NetworkCopy::without(file, BTreeSet::new());
    let functions = functions_with_weights(&mut copy, &model.opsets)?;
    let mut reader = CarriedReader {
        copy,
        weights,
        functions: &functions,
        prefixes: Prefixes::of(&model),
        found: &mut found,
        carried: &mut carried,
    };
    reader.model(&is_given)?;
    found.carried = Some(carried);
    Ok(found)
}

struct CarriedReader<'a, 'b> {
    copy: NetworkCopy<'a>,
    weights: &'b BTreeMap<String, StreamedWeight>,
    /// The functions whose calls become nodes.
    functions: &'b BTreeMap<OperatorKey, FunctionParts>,
    prefixes: Prefixes,
    found: &'b mut OnnxModel,
    carried: &'b mut CarriedModel,
}

impl CarriedReader<'_, '_> {
    fn model(&mut self, is_given: &dyn Fn(&str) -> bool) -> Result<()> {
        let (mut rest, mut fields) = (self.copy.from.wire.whole(), WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.copy.from.wire.field(&mut rest)? else { break };
            match (field.number, field.value) {
                (1 | 8, _) => {}
                (7, WireValue::Span(span)) => self.graph(span, is_given)?,
                (14, WireValue::Span(span)) => {
                    let pair = string_pair(&mut self.copy.from, span)?;
                    if !pair.0.starts_with(OUR_KEYS) {
                        self.found.metadata.push(pair);
                    }
                }
                _ => self.copy.raw(start..rest.start, &mut fields)?,
            }
        }
        self.carried.fields = fields.bytes;
        Ok(())
    }

    fn graph(&mut self, span: Range<u64>, is_given: &dyn Fn(&str) -> bool) -> Result<()> {
        let (mut rest, mut fields) = (span, WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.copy.from.wire.field(&mut rest)? else { break };
            let WireValue::Span(span) = field.value else {
                self.copy.raw(start..rest.start, &mut fields)?;
                continue;
            };
            match field.number {
                1 => self.node(span, None, 0)?,
                2 => {}
                5 => self.tensor(span)?,
                11..=13 => self.value(field.number, span, is_given)?,
                _ => self.copy.raw(start..rest.start, &mut fields)?,
            }
        }
        self.carried.graph_fields = fields.bytes;
        Ok(())
    }

    /// Adds an input, an output, or the type of a value. Inputs with an initializer are left out: it is a constant.
    fn value(&mut self, field: u32, span: Range<u64>, is_given: &dyn Fn(&str) -> bool) -> Result<()> {
        let ValueInfo { name, data_type, .. } = ValueInfo::read(&mut self.copy.from, span.clone())?;
        self.carried.types.extend(OnnxType::numbered(data_type).map(|dtype| (name.clone(), dtype)));
        let mut message = WireMessage::default();
        self.copy.raw(span, &mut message)?;
        let value = |name| OnnxValue {
            encoded: Some(message.bytes.clone()),
            ..OnnxValue::new(name, OnnxType::F32, Vec::new())
        };
        match field {
            11 if is_given(&name) => {}
            11 => self.found.inputs.push(value(name)),
            12 => self.found.outputs.push(value(name)),
            _ => self.carried.values.push((name, message.bytes)),
        }
        Ok(())
    }

    fn tensor(&mut self, span: Range<u64>) -> Result<()> {
        let tensor = Tensor::read(&mut self.copy.from, span.clone())?;
        if self.streamed(&tensor.name, &tensor)? {
            return Ok(());
        }
        let dtype = OnnxType::numbered(tensor.data_type);
        let is_small = dtype.is_some() && tensor.n_elements().is_some_and(|n| n <= MAX_ELEMENTS);
        let data = match (&tensor.data, dtype) {
            (TensorData::Span(place), _) if is_small => {
                let mut bytes = WireMessage::default();
                self.copy.raw(place.clone(), &mut bytes)?;
                OnnxData::Inline(bytes.bytes)
            }
            (TensorData::Varints(_), Some(OnnxType::I64)) if is_small => {
                let constant = tensor.constant(self.copy.file, MAX_ELEMENTS)?;
                let values = constant.map(|constant| constant.values).unwrap_or_default();
                OnnxData::Inline(values.into_iter().flat_map(|value| (value as i64).to_le_bytes()).collect())
            }
            _ => OnnxData::Encoded(self.copy.whole_tensor(span, &tensor)?),
        };
        let dtype = dtype.unwrap_or(OnnxType::F32);
        self.found.tensors.push(OnnxTensor { name: tensor.name, dtype, shape: tensor.shape, data });
        Ok(())
    }

    /// Adds a weight that comes from elsewhere instead of a tensor of the file; returns whether it is one.
    fn streamed(&mut self, name: &str, tensor: &Tensor) -> Result<bool> {
        let Some((index, shape)) = self.weights.get(name) else { return Ok(false) };
        let (data, shape) = (OnnxData::Streamed(*index), shape.0.clone());
        let dtype = OnnxType::numbered(tensor.data_type).ok_or_else(|| {
            let number = tensor.data_type;
            Error::config(format!("found element type {number}, expected floats or integers of a known type")).at(name)
        })?;
        self.found.tensors.push(OnnxTensor { name: name.into(), dtype, shape, data });
        Ok(true)
    }

    /// Adds a node, or the nodes of the function that it calls. `scope` is the call around it, and `depth` counts calls.
    fn node(&mut self, span: Range<u64>, scope: Option<&CallScope>, depth: usize) -> Result<()> {
        let mut node = Node::read(&mut self.copy.from, span.clone(), 0)?;
        if scope.is_none()
            && let Some((name, tensor)) = constant(&node)
            && self.streamed(name, tensor)?
        {
            return Ok(());
        }
        let inner = node.names_inside().into_iter().map(str::to_string).collect();
        let mut carried = CarriedNode { inner, ..CarriedNode::default() };
        self.fields_of_node(span, scope, &mut carried)?;
        if let Some(scope) = scope {
            scope.fit(&mut node);
            carried.inner.iter_mut().for_each(|name| *name = scope.value(name));
            let mut before = WireMessage::from(carried.before);
            before.text(3, &node.name);
            carried.before = before.bytes;
        }
        let functions = self.functions;
        if let Some(function) = functions.get(&operator_of(&node)).filter(|_| depth < MAX_CALLS) {
            return self.call(function, node, carried, depth);
        }
        let mut attributes = Vec::new();
        for attribute in &node.attributes {
            if let Some(value) = self.described(&attribute.value)? {
                attributes.push((Cow::from(attribute.name.clone()), value));
            }
        }
        self.found.nodes.push(OnnxNode {
            attributes,
            name: node.name,
            op: node.op_type.into(),
            domain: node.domain.into(),
            inputs: node.inputs,
            outputs: node.outputs,
            carried: Some(carried),
        });
        Ok(())
    }

    /// Adds the nodes of a function as a call has them.
    fn call(&mut self, function: &FunctionParts, call: Node, carried: CarriedNode, depth: usize) -> Result<()> {
        let messages: BTreeMap<String, Vec<u8>> = carried.attributes.into_iter().collect();
        let given = |attribute: &Attribute| {
            let message = messages.get(&attribute.name)?.clone();
            Some(GivenAttribute { attribute: attribute.clone(), message })
        };
        let given = call.attributes.iter().filter_map(given).collect();
        let domains = function.opsets.iter().filter(|(domain, _)| !domain.is_empty());
        self.carried.domains.extend(domains.map(|(domain, version)| (domain.clone(), *version)));
        let scope = CallScope::new(function, &call, given, self.prefixes.next(&call.op_type));
        function.nodes.iter().try_for_each(|span| self.node(span.clone(), Some(&scope), depth + 1))
    }

    /// Keeps the fields of a node beside the names of its inputs and outputs.
    fn fields_of_node(&mut self, span: Range<u64>, scope: Option<&CallScope>, found: &mut CarriedNode) -> Result<()> {
        let (mut rest, mut before, mut after) = (span, WireMessage::default(), WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.copy.from.wire.field(&mut rest)? else { break };
            match (field.number, field.value) {
                (1 | 2, _) => {}
                // A node of a function gets a name of its call.
                (3, _) if scope.is_some() => {}
                (5, WireValue::Span(span)) => match scope {
                    Some(scope) => found.attributes.extend(self.copy.attribute_of_call(span, scope)?),
                    None => {
                        let name = self.first_text(span.clone())?;
                        found.attributes.push((name, self.copy.whole_attribute(span)?));
                    }
                },
                _ if found.attributes.is_empty() => self.copy.raw(start..rest.start, &mut before)?,
                _ => self.copy.raw(start..rest.start, &mut after)?,
            }
        }
        (found.before, found.after) = (before.bytes, after.bytes);
        Ok(())
    }

    /// The first field of a message as text: the name of an attribute or value.
    fn first_text(&mut self, span: Range<u64>) -> Result<String> {
        let (mut rest, mut name) = (span, String::new());
        while let Some(field) = self.copy.from.wire.field(&mut rest)? {
            if let (1, WireValue::Span(span)) = (field.number, field.value) {
                name = self.copy.from.text(&span)?;
            }
        }
        Ok(name)
    }

    fn described(&self, value: &AttributeValue) -> Result<Option<OnnxAttribute>> {
        Ok(Some(match value {
            AttributeValue::Float(value) => OnnxAttribute::Float(*value),
            AttributeValue::Int(value) => OnnxAttribute::Int(*value),
            AttributeValue::Ints(values) => OnnxAttribute::Ints(values.clone()),
            AttributeValue::Tensor(tensor) => match tensor.constant(self.copy.file, MAX_ELEMENTS)? {
                Some(constant) => OnnxAttribute::Elements(constant.values),
                None => return Ok(None),
            },
            AttributeValue::Bytes(bytes) => match String::from_utf8(bytes.clone()) {
                Ok(text) => OnnxAttribute::Text(text.into()),
                Err(_) => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }
}

/// Gives each call a prefix for the names of its values.
struct Prefixes {
    /// The names of the file.
    taken: BTreeSet<String>,
    n_given: usize,
}

impl Prefixes {
    fn of(model: &Model) -> Self {
        let OnnxGraph { nodes, initializers, inputs, .. } = &model.graph;
        let values = nodes.iter().flat_map(|node| &node.outputs).cloned();
        let tensors = initializers.iter().map(|tensor| tensor.name.clone());
        let inside = nodes.iter().flat_map(Node::names_inside).map(str::to_string);
        let inputs = inputs.iter().map(|input| input.name.clone());
        Self { taken: values.chain(tensors).chain(inputs).chain(inside).collect(), n_given: 0 }
    }

    /// Returns a prefix such as `Dense.2`, which no name of the file has.
    fn next(&mut self, function: &str) -> String {
        // Without slashes, so that no prefix is that of another's names.
        let function = function.replace('/', "_");
        loop {
            self.n_given += 1;
            let prefix = format!("{function}.{}", self.n_given);
            let first = format!("{prefix}/");
            if !self.taken.range(first.clone()..).next().is_some_and(|name| name.starts_with(&first)) {
                return prefix;
            }
        }
    }
}
