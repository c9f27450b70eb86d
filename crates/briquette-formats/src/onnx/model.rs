//! `ModelProto`: the graph, its opsets, functions and metadata.

use super::fields::FieldReader;
use super::graph::{Attribute, Node, OnnxGraph};
use super::tensor::string_pair;
use super::wire::{WireValue, damaged};
use crate::{InputFile, limits};
use briquette_core::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// A model without the data of its tensors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    /// The version of the file format.
    pub ir_version: u64,
    /// The version of each domain's operators; ONNX's own domain is empty.
    pub opsets: BTreeMap<String, i64>,
    /// The program that wrote the file.
    pub producer: String,
    /// The graph.
    pub graph: OnnxGraph,
    /// Operators that the file defines itself.
    pub functions: Vec<OnnxFunction>,
    /// Free-form strings.
    pub metadata: BTreeMap<String, String>,
}

/// An operator that a file defines by other operators.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnnxFunction {
    /// The operator.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// Tells functions of the same operator and domain apart; usually empty.
    pub overload: String,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Attributes that a call may leave out, with their values.
    pub defaults: Vec<Attribute>,
}

impl Model {
    /// Reads the structure of a model.
    ///
    /// # Errors
    /// - Input: the file is damaged, has no graph, or its structure needs more than 40 MiB.
    /// - Io: the file cannot be read.
    pub fn read(file: &InputFile) -> Result<Self> {
        Self::read_unnamed(file).map_err(|error| match error.kind {
            ErrorKind::Input => error.at(file.path().display()),
            _ => error,
        })
    }

    fn read_unnamed(file: &InputFile) -> Result<Self> {
        let mut from = FieldReader::new(file);
        let (mut rest, mut found, mut graph) = (from.wire.whole(), Self::default(), None);
        while let Some(field) = from.wire.field(&mut rest)? {
            match (field.number, field.value) {
                (1, WireValue::Varint(value)) => found.ir_version = value,
                (2, WireValue::Span(span)) => found.producer = from.text(&span)?,
                (7, WireValue::Span(span)) => {
                    let start = span.start;
                    if graph.replace(OnnxGraph::read(&mut from, span, 0)?).is_some() {
                        return Err(damaged(start, "a second graph"));
                    }
                }
                (8, WireValue::Span(span)) => {
                    let (domain, version) = from.opset(span)?;
                    found.opsets.insert(domain, version);
                }
                (14, WireValue::Span(span)) => {
                    let (key, value) = string_pair(&mut from, span)?;
                    if found.metadata.len() < limits::MAX_METADATA {
                        found.metadata.insert(key, value);
                    }
                }
                (25, WireValue::Span(span)) => found.functions.push(OnnxFunction::read(&mut from, span)?),
                _ => {}
            }
        }
        let lacks = |what: &str| {
            Error::input(format!("found no {what}, expected an ONNX model; the file is cut short or is no ONNX model"))
        };
        found.graph = graph.ok_or_else(|| lacks("graph"))?;
        // Since the third version of the format, a model names the version of its operators.
        if found.ir_version >= 3 && found.opsets.is_empty() {
            return Err(lacks("version of the operators"));
        }
        Ok(found)
    }

    /// Returns the version of ONNX's own operators; 1 where the file names none.
    pub fn opset(&self) -> i64 {
        self.opsets.get("").copied().unwrap_or(1)
    }
}

impl OnnxFunction {
    fn read(from: &mut FieldReader, span: Range<u64>) -> Result<Self> {
        from.charge(size_of::<Self>())?;
        let (mut rest, mut found) = (span, Self::default());
        while let Some(field) = from.wire.field(&mut rest)? {
            let WireValue::Span(span) = field.value else { continue };
            match field.number {
                1 => found.name = from.text(&span)?,
                4 => found.inputs.push(from.text(&span)?),
                5 => found.outputs.push(from.text(&span)?),
                7 => found.nodes.push(Node::read(from, span, 1)?),
                10 => found.domain = from.text(&span)?,
                11 => found.defaults.push(Attribute::read(from, span, 1)?),
                13 => found.overload = from.text(&span)?,
                _ => {}
            }
        }
        if found.domain == "ai.onnx" {
            found.domain.clear();
        }
        Ok(found)
    }
}
