//! `GraphProto`: nodes with their attributes, initializers, inputs and outputs.

use super::fields::{FieldReader, MAX_DEPTH};
use super::tensor::Tensor;
use super::wire::{WireValue, damaged};
use briquette_core::Result;
use std::collections::BTreeSet;
use std::ops::Range;

/// The graph of a model, or of an attribute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnnxGraph {
    /// The name.
    pub name: String,
    /// The nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// The tensors with values.
    pub initializers: Vec<Tensor>,
    /// Number of initializers that are stored as sparse.
    pub n_sparse: usize,
    /// The inputs. In old files, initializers are inputs too.
    pub inputs: Vec<ValueInfo>,
    /// The outputs.
    pub outputs: Vec<ValueInfo>,
    /// Types and shapes of values in between.
    pub values: Vec<ValueInfo>,
}

/// An operation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// The name; often empty.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// The domain of the operator; empty for ONNX's own.
    pub domain: String,
    /// Tells functions of the same operator and domain apart; usually empty.
    pub overload: String,
    /// Names of the inputs; empty where an optional input is absent.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// The attributes.
    pub attributes: Vec<Attribute>,
}

/// A named setting of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// The name.
    pub name: String,
    /// The value.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A text or bytes.
    Bytes(Vec<u8>),
    /// A tensor.
    Tensor(Tensor),
    /// A graph.
    Graph(Box<OnnxGraph>),
    /// Floats.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Texts(Vec<Vec<u8>>),
    /// The value of an attribute of the function around it.
    OfFunction(String),
    /// Anything else.
    Other,
}

/// The type and shape of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValueInfo {
    /// The name.
    pub name: String,
    /// The number of the element type in `TensorProto.DataType`; 0 if it is no tensor.
    pub data_type: i64,
    /// Extents; `None` if the rank is not known.
    pub shape: Option<Vec<Dim>>,
}

/// An extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Extent(usize),
    /// A name, such as `batch`.
    Named(String),
    /// Neither.
    Unknown,
}

impl Node {
    /// Returns the attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    /// Returns the graphs inside of the node, such as the branches of `If`.
    pub fn inner_graphs(&self) -> impl Iterator<Item = &OnnxGraph> {
        self.attributes.iter().filter_map(|attribute| match &attribute.value {
            AttributeValue::Graph(graph) => Some(&**graph),
            _ => None,
        })
    }

    /// Returns the node and all nodes of graphs inside of it.
    pub fn with_inner(&self) -> Vec<&Self> {
        let inner = self.inner_graphs().flat_map(OnnxGraph::all_nodes);
        std::iter::once(self).chain(inner).collect()
    }

    /// Returns the names that the graphs inside of the node use.
    pub fn names_inside(&self) -> BTreeSet<&str> {
        let nodes = || self.inner_graphs().flat_map(OnnxGraph::all_nodes);
        let outputs = self.with_inner().into_iter().flat_map(Self::inner_graphs).flat_map(|graph| &graph.outputs);
        let read = nodes().flat_map(|node| &node.inputs).map(String::as_str);
        read.chain(outputs.map(|output| output.name.as_str())).filter(|name| !name.is_empty()).collect()
    }
}

impl OnnxGraph {
    /// Returns every node, those of graphs inside of nodes too.
    pub fn all_nodes(&self) -> Vec<&Node> {
        self.nodes.iter().flat_map(Node::with_inner).collect()
    }

    /// Reads a graph. `depth` counts the graphs around it.
    ///
    /// # Errors
    /// - Input: it is damaged, nested too deeply, or needs too much memory.
    /// - Io: the file cannot be read.
    pub(super) fn read(from: &mut FieldReader, span: Range<u64>, depth: usize) -> Result<Self> {
        if depth > MAX_DEPTH {
            return Err(damaged(span.start, &format!("graphs nested more than {MAX_DEPTH} deep")));
        }
        let (mut rest, mut found) = (span, Self::default());
        while let Some(field) = from.wire.field(&mut rest)? {
            let WireValue::Span(span) = field.value else { continue };
            match field.number {
                1 => found.nodes.push(Node::read(from, span, depth)?),
                2 => found.name = from.text(&span)?,
                5 => found.initializers.push(Tensor::read(from, span)?),
                11 => found.inputs.push(ValueInfo::read(from, span)?),
                12 => found.outputs.push(ValueInfo::read(from, span)?),
                13 => found.values.push(ValueInfo::read(from, span)?),
                15 => found.n_sparse += 1,
                _ => {}
            }
        }
        Ok(found)
    }
}

impl Node {
    /// Reads a node.
    ///
    /// # Errors
    /// See [`Graph::read`].
    pub(super) fn read(from: &mut FieldReader, span: Range<u64>, depth: usize) -> Result<Self> {
        from.charge(size_of::<Self>())?;
        let (mut rest, mut found) = (span, Self::default());
        while let Some(field) = from.wire.field(&mut rest)? {
            let WireValue::Span(span) = field.value else { continue };
            match field.number {
                1 | 2 => {
                    from.charge(size_of::<String>())?;
                    let names = if field.number == 1 { &mut found.inputs } else { &mut found.outputs };
                    names.push(from.text(&span)?);
                }
                3 => found.name = from.text(&span)?,
                4 => found.op_type = from.text(&span)?,
                5 => found.attributes.push(Attribute::read(from, span, depth)?),
                7 => found.domain = from.text(&span)?,
                8 => found.overload = from.text(&span)?,
                _ => {}
            }
        }
        if found.domain == "ai.onnx" {
            found.domain.clear();
        }
        Ok(found)
    }
}

impl Attribute {
    /// Reads an attribute.
    ///
    /// # Errors
    /// See [`Graph::read`].
    pub(super) fn read(from: &mut FieldReader, span: Range<u64>, depth: usize) -> Result<Self> {
        from.charge(size_of::<Self>())?;
        let (mut rest, mut name, mut value) = (span, String::new(), AttributeValue::Other);
        let (mut ints, mut floats, mut texts, mut kind) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while let Some(field) = from.wire.field(&mut rest)? {
            match (field.number, field.value) {
                (1, WireValue::Span(span)) => name = from.text(&span)?,
                (2, one @ WireValue::Fixed(_)) => {
                    let mut one_float = Vec::new();
                    from.floats(&one, &mut one_float)?;
                    value = one_float.first().map_or(AttributeValue::Other, |float| AttributeValue::Float(*float));
                }
                (3, WireValue::Varint(found)) => value = AttributeValue::Int(found.cast_signed()),
                (4, WireValue::Span(span)) => value = AttributeValue::Bytes(from.bytes(&span)?),
                (5, WireValue::Span(span)) => value = AttributeValue::Tensor(Tensor::read(from, span)?),
                (6, WireValue::Span(span)) => {
                    value = AttributeValue::Graph(Box::new(OnnxGraph::read(from, span, depth + 1)?))
                }
                (7, found) => from.floats(&found, &mut floats)?,
                (8, found) => from.integers(&found, &mut ints)?,
                (9, WireValue::Span(span)) => texts.push(from.bytes(&span)?),
                (20, WireValue::Varint(found)) => kind = found,
                (21, WireValue::Span(span)) => value = AttributeValue::OfFunction(from.text(&span)?),
                _ => {}
            }
        }
        // The kind tells an empty list, and a value that is its type's default, from an absent one.
        let value = match (value, kind) {
            (AttributeValue::Other, _) if !ints.is_empty() => AttributeValue::Ints(ints),
            (AttributeValue::Other, _) if !floats.is_empty() => AttributeValue::Floats(floats),
            (AttributeValue::Other, _) if !texts.is_empty() => AttributeValue::Texts(texts),
            (AttributeValue::Other, 1) => AttributeValue::Float(0.0),
            (AttributeValue::Other, 2) => AttributeValue::Int(0),
            (AttributeValue::Other, 3) => AttributeValue::Bytes(Vec::new()),
            (AttributeValue::Other, 6) => AttributeValue::Floats(floats),
            (AttributeValue::Other, 7) => AttributeValue::Ints(ints),
            (value, _) => value,
        };
        Ok(Self { name, value })
    }
}

impl ValueInfo {
    pub(super) fn read(from: &mut FieldReader, span: Range<u64>) -> Result<Self> {
        from.charge(size_of::<Self>())?;
        let (mut rest, mut found) = (span, Self::default());
        while let Some(field) = from.wire.field(&mut rest)? {
            match (field.number, field.value) {
                (1, WireValue::Span(span)) => found.name = from.text(&span)?,
                (2, WireValue::Span(span)) => found.read_type(from, span)?,
                _ => {}
            }
        }
        Ok(found)
    }

    /// Reads a `TypeProto`, of which only tensors have a shape.
    fn read_type(&mut self, from: &mut FieldReader, mut rest: Range<u64>) -> Result<()> {
        while let Some(field) = from.wire.field(&mut rest)? {
            let (1, WireValue::Span(mut tensor)) = (field.number, field.value) else { continue };
            while let Some(field) = from.wire.field(&mut tensor)? {
                match (field.number, field.value) {
                    (1, WireValue::Varint(value)) => self.data_type = value.cast_signed(),
                    (2, WireValue::Span(span)) => self.shape = Some(read_shape(from, span)?),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn read_shape(from: &mut FieldReader, mut rest: Range<u64>) -> Result<Vec<Dim>> {
    let mut found = Vec::new();
    while let Some(field) = from.wire.field(&mut rest)? {
        let (1, WireValue::Span(mut dim)) = (field.number, field.value) else { continue };
        from.charge(size_of::<Dim>())?;
        let mut extent = Dim::Unknown;
        while let Some(field) = from.wire.field(&mut dim)? {
            match (field.number, field.value) {
                (1, WireValue::Varint(value)) => {
                    extent = usize::try_from(value.cast_signed()).map_or(Dim::Unknown, Dim::Extent)
                }
                (2, WireValue::Span(span)) => extent = Dim::Named(from.text(&span)?),
                _ => {}
            }
        }
        found.push(extent);
    }
    Ok(found)
}
