//! Functions of a file that have products or look-ups: their calls become nodes, whose weights may then have codes.

use super::copy::NetworkCopy;
use super::graph::{Attribute, AttributeValue, Node};
use super::tensor::Tensor;
use super::wire::WireValue;
use crate::onnx_write::WireMessage;
use briquette_core::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Operators whose weights may have codes.
const WITH_WEIGHTS: [&str; 3] = ["MatMul", "Gemm", "Gather"];

/// The domain, name and overload of an operator.
pub(super) type OperatorKey = [String; 3];

/// A function of a file.
#[derive(Debug, Default)]
pub(super) struct FunctionParts {
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    /// Where the messages of the nodes are.
    pub(super) nodes: Vec<Range<u64>>,
    /// Attributes that a call may leave out.
    defaults: Vec<GivenAttribute>,
    /// The operators of the nodes.
    operators: Vec<OperatorKey>,
    /// The versions of the operators of each domain.
    pub(super) opsets: BTreeMap<String, i64>,
}

/// An attribute of a call: what it says, and its message.
#[derive(Debug, Clone)]
pub(super) struct GivenAttribute {
    pub(super) attribute: Attribute,
    pub(super) message: Vec<u8>,
}

impl FunctionParts {
    /// Returns whether the nodes may be in a graph with these versions of operators: each input and output has a name of its own.
    fn fits(&self, opsets: &BTreeMap<String, i64>) -> bool {
        let mut names = BTreeSet::new();
        self.inputs.iter().chain(&self.outputs).all(|name| names.insert(name))
            && self.opsets.iter().all(|(domain, version)| opsets.get(domain).is_none_or(|known| known == version))
    }
}

/// Returns the operator of a node.
pub(super) fn operator_of(node: &Node) -> OperatorKey {
    [node.domain.clone(), node.op_type.clone(), node.overload.clone()]
}

/// Reads the functions whose calls become nodes. They have products or look-ups, or call such functions, and their operators have
/// the versions of the model's, `opsets`.
///
/// # Errors
/// See [`Model::read`](super::Model::read).
pub(super) fn functions_with_weights(
    copy: &mut NetworkCopy,
    opsets: &BTreeMap<String, i64>,
) -> Result<BTreeMap<OperatorKey, FunctionParts>> {
    let (mut rest, mut known) = (copy.from.wire.whole(), BTreeMap::new());
    while let Some(field) = copy.from.wire.field(&mut rest)? {
        if let (25, WireValue::Span(span)) = (field.number, field.value) {
            let (key, parts) = function(copy, span)?;
            if parts.fits(opsets) {
                known.insert(key, parts);
            }
        }
    }
    let own = |key: &OperatorKey| key[0].is_empty() && WITH_WEIGHTS.contains(&key[1].as_str());
    let mut found: BTreeMap<OperatorKey, FunctionParts> = BTreeMap::new();
    loop {
        let uses = |parts: &FunctionParts| parts.operators.iter().any(|key| own(key) || found.contains_key(key));
        let (new, others) = known.into_iter().partition(|(_, parts)| uses(parts));
        let new: BTreeMap<_, _> = new;
        known = others;
        if new.is_empty() {
            return Ok(found);
        }
        found.extend(new);
    }
}

fn function(copy: &mut NetworkCopy, span: Range<u64>) -> Result<(OperatorKey, FunctionParts)> {
    let (mut rest, mut key, mut found) = (span, OperatorKey::default(), FunctionParts::default());
    while let Some(field) = copy.from.wire.field(&mut rest)? {
        let WireValue::Span(span) = field.value else { continue };
        match field.number {
            1 => key[1] = copy.from.text(&span)?,
            4 => found.inputs.push(copy.from.text(&span)?),
            5 => found.outputs.push(copy.from.text(&span)?),
            7 => {
                found.operators.push(operator_of(&Node::read(&mut copy.from, span.clone(), 1)?));
                found.nodes.push(span);
            }
            9 => {
                let (domain, version) = copy.from.opset(span)?;
                found.opsets.insert(domain, version);
            }
            10 => key[0] = copy.from.text(&span)?,
            11 => {
                let attribute = Attribute::read(&mut copy.from, span.clone(), 1)?;
                found.defaults.push(GivenAttribute { attribute, message: copy.whole_attribute(span)? });
            }
            13 => key[2] = copy.from.text(&span)?,
            _ => {}
        }
    }
    if key[0] == "ai.onnx" {
        key[0].clear();
    }
    Ok((key, found))
}

/// The names and attributes of a call, for the nodes of its function.
pub(super) struct CallScope {
    /// The names of inputs and outputs of the function in the graph around it. An empty name is an absent input.
    names: BTreeMap<String, String>,
    /// Precedes every other name.
    prefix: String,
    given: Vec<GivenAttribute>,
}

impl CallScope {
    /// The scope of a call with these attributes. `prefix` is used by no other call.
    pub(super) fn new(function: &FunctionParts, call: &Node, given: Vec<GivenAttribute>, prefix: String) -> Self {
        let absent = String::new();
        let inputs = function.inputs.iter().zip(call.inputs.iter().chain(std::iter::repeat(&absent)));
        let outputs = function.outputs.iter().zip(&call.outputs).filter(|(_, outside)| !outside.is_empty());
        let names = inputs.chain(outputs).map(|(own, outside)| (own.clone(), outside.clone())).collect();
        let is_given = |name: &str| given.iter().any(|one| one.attribute.name == name);
        let defaults = function.defaults.iter().filter(|one| !is_given(&one.attribute.name)).cloned();
        Self { names, prefix, given: given.iter().cloned().chain(defaults).collect() }
    }

    /// Returns the name of a value of the function in the graph around it.
    pub(super) fn value(&self, own: &str) -> String {
        self.names.get(own).cloned().unwrap_or_else(|| self.inner(own))
    }

    /// Returns a name that only the function uses.
    fn inner(&self, own: &str) -> String {
        if own.is_empty() { String::new() } else { format!("{}/{own}", self.prefix) }
    }

    /// Gives a node of the function the names and attributes of the call.
    pub(super) fn fit(&self, node: &mut Node) {
        node.name = self.inner(&node.name);
        node.inputs.iter_mut().chain(&mut node.outputs).for_each(|name| *name = self.value(name));
        let attributes = std::mem::take(&mut node.attributes);
        let resolved = |attribute: Attribute| match &attribute.value {
            AttributeValue::OfFunction(outside) => Some(self.attribute(outside, &attribute.name)?.attribute),
            _ => Some(attribute),
        };
        node.attributes = attributes.into_iter().filter_map(resolved).collect();
    }

    /// Returns an attribute of the call under a name of a node inside.
    fn attribute(&self, outside: &str, own: &str) -> Option<GivenAttribute> {
        let found = self.given.iter().find(|one| one.attribute.name == outside)?;
        let value = found.attribute.value.clone();
        let message = with_text(found.message.clone(), 1, own);
        Some(GivenAttribute { attribute: Attribute { name: own.into(), value }, message })
    }
}

/// Sets a text of a message. Of a field that is given twice, the last one holds.
fn with_text(message: Vec<u8>, field: u64, text: &str) -> Vec<u8> {
    let mut made = WireMessage::from(message);
    made.text(field, text);
    made.bytes
}

/// The kinds of messages with names of values.
#[derive(Clone, Copy)]
enum NamedKind {
    Attribute,
    Graph,
    Node,
    Tensor,
    Value,
}

impl NamedKind {
    /// Returns the kind of the message in a field, if names may be in it.
    fn below(self, field: u32) -> Option<Self> {
        match (self, field) {
            (Self::Attribute, 6 | 11) => Some(Self::Graph),
            (Self::Graph, 1) => Some(Self::Node),
            (Self::Graph, 5) => Some(Self::Tensor),
            (Self::Graph, 11..=13) => Some(Self::Value),
            (Self::Node, 5) => Some(Self::Attribute),
            _ => None,
        }
    }

    /// Returns whether a field names a value.
    fn has_name(self, field: u32) -> bool {
        matches!((self, field), (Self::Node, 1 | 2) | (Self::Value, 1))
    }
}

impl NetworkCopy<'_> {
    /// Returns an attribute of a node of a function as a call has it: its name and its message; `None` if the call does not give it.
    pub(super) fn attribute_of_call(
        &mut self,
        span: Range<u64>,
        scope: &CallScope,
    ) -> Result<Option<(String, Vec<u8>)>> {
        let attribute = Attribute::read(&mut self.from, span.clone(), 1)?;
        let message = match &attribute.value {
            AttributeValue::OfFunction(outside) => scope.attribute(outside, &attribute.name).map(|one| one.message),
            AttributeValue::Tensor(_) => Some(self.whole_attribute(span)?),
            _ => Some(self.named(span, NamedKind::Attribute, scope)?.bytes),
        };
        Ok(message.map(|message| (attribute.name, message)))
    }

    /// Copies a message with the names of a call.
    fn named(&mut self, span: Range<u64>, kind: NamedKind, scope: &CallScope) -> Result<WireMessage> {
        let (mut rest, mut made) = (span, WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.from.wire.field(&mut rest)? else { return Ok(made) };
            match (kind.below(field.number), field.value) {
                (Some(NamedKind::Attribute), WireValue::Span(span)) => {
                    if let Some((_, message)) = self.attribute_of_call(span, scope)? {
                        made.text(field.number.into(), message);
                    }
                }
                (Some(NamedKind::Tensor), WireValue::Span(span)) => {
                    let tensor = Tensor::read(&mut self.from, span.clone())?;
                    let message = self.whole_tensor(span, &tensor)?;
                    made.text(field.number.into(), with_text(message, 8, &scope.value(&tensor.name)));
                }
                (Some(below), WireValue::Span(span)) => {
                    let inner = self.named(span, below, scope)?;
                    made.message(field.number.into(), &inner);
                }
                (None, WireValue::Span(span)) if kind.has_name(field.number) => {
                    made.text(field.number.into(), scope.value(&self.from.text(&span)?));
                }
                _ => self.raw(start..rest.start, &mut made)?,
            }
        }
    }
}
