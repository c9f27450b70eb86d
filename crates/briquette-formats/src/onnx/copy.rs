//! Copies messages of a model, with or without the elements of its tensors.

use super::external;
use super::fields::FieldReader;
use super::graph::Node;
use super::skeleton::constant;
use super::tensor::{Tensor, TensorData};
use super::wire::WireValue;
use crate::InputFile;
use crate::onnx_write::WireMessage;
use briquette_core::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// The largest network that an output holds.
pub const MAX_NETWORK_BYTES: u64 = 256 << 20;

/// Fields of a tensor with its elements, or with their place.
const DATA_FIELDS: [u32; 9] = [4, 5, 6, 7, 9, 10, 11, 13, 14];

/// The kinds of messages with tensors below them.
#[derive(Clone, Copy)]
enum MessageKind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
}

impl MessageKind {
    /// Returns the kind of the message in a field, if tensors may be in it.
    fn below(self, field: u32) -> Option<Self> {
        match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Some(Self::Graph),
            (Self::Graph, 1) => Some(Self::Node),
            (Self::Node, 5) => Some(Self::Attribute),
            (Self::Graph, 5) | (Self::Attribute, 5) => Some(Self::Tensor),
            _ => None,
        }
    }
}

/// A message in the model.
struct Place {
    kind: MessageKind,
    /// Whether it is in a graph inside of a node, whose tensors are no weights of the checkpoint.
    is_inner: bool,
    /// The name of the value of a constant that counts as a weight.
    name: Option<String>,
}

/// A copy of a model, or of parts of it.
pub(super) struct NetworkCopy<'a> {
    pub(super) file: &'a InputFile,
    pub(super) from: FieldReader<'a>,
    /// The names of tensors whose elements are left out.
    weights: BTreeSet<String>,
    /// The bytes that the copy may still have.
    left: u64,
}

impl<'a> NetworkCopy<'a> {
    /// Begins a copy without the elements of these weights.
    pub(super) fn without(file: &'a InputFile, weights: BTreeSet<String>) -> Self {
        Self { file, from: FieldReader::new(file), weights, left: MAX_NETWORK_BYTES }
    }

    /// Returns whether the copy has no room for more.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Copies the whole model.
    ///
    /// # Errors
    /// - Input: the copy would be too large, or the model is damaged.
    /// - Io: a file cannot be read.
    pub(super) fn whole(&mut self) -> Result<Vec<u8>> {
        let whole = self.from.wire.whole();
        Ok(self.message(whole, &Place { kind: MessageKind::Model, is_inner: false, name: None })?.bytes)
    }
}

impl NetworkCopy<'_> {
    fn message(&mut self, span: Range<u64>, place: &Place) -> Result<WireMessage> {
        if matches!(place.kind, MessageKind::Tensor) {
            return self.tensor(span, place);
        }
        let name = match place.kind {
            MessageKind::Node if !place.is_inner => {
                constant(&Node::read(&mut self.from, span.clone(), 1)?).map(|(name, _)| name.to_string())
            }
            _ => place.name.clone(),
        };
        let (mut rest, mut made) = (span, WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.from.wire.field(&mut rest)? else { return Ok(made) };
            match (place.kind.below(field.number), field.value) {
                (Some(kind), WireValue::Span(span)) => {
                    // A tensor of an attribute is a weight only if its node is a constant, whatever the tensor's own name.
                    let is_inner = place.is_inner
                        || match (place.kind, kind) {
                            (MessageKind::Attribute, MessageKind::Graph) => true,
                            (MessageKind::Attribute, MessageKind::Tensor) => name.is_none(),
                            _ => false,
                        };
                    let inner = self.message(span, &Place { kind, is_inner, name: name.clone() })?;
                    made.message(field.number.into(), &inner);
                }
                _ => self.raw(start..rest.start, &mut made)?,
            }
        }
    }

    /// Copies a tensor, without the elements of a weight and with those of another file.
    fn tensor(&mut self, span: Range<u64>, place: &Place) -> Result<WireMessage> {
        let tensor = Tensor::read(&mut self.from, span.clone())?;
        self.tensor_parts(span, &tensor, place)
    }

    /// Returns the message of a tensor with all of its elements.
    pub(super) fn whole_tensor(&mut self, span: Range<u64>, tensor: &Tensor) -> Result<Vec<u8>> {
        let place = Place { kind: MessageKind::Tensor, is_inner: true, name: None };
        Ok(self.tensor_parts(span, tensor, &place)?.bytes)
    }

    /// Returns the message of an attribute with all elements of its tensors.
    pub(super) fn whole_attribute(&mut self, span: Range<u64>) -> Result<Vec<u8>> {
        Ok(self.message(span, &Place { kind: MessageKind::Attribute, is_inner: true, name: None })?.bytes)
    }

    fn tensor_parts(&mut self, span: Range<u64>, tensor: &Tensor, place: &Place) -> Result<WireMessage> {
        let name = place.name.as_deref().unwrap_or(&tensor.name);
        let is_weight = !place.is_inner && self.weights.contains(name);
        let is_external = matches!(tensor.data, TensorData::External { .. });
        let (mut rest, mut made) = (span, WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.from.wire.field(&mut rest)? else { break };
            if !((is_weight || is_external) && DATA_FIELDS.contains(&field.number)) {
                self.raw(start..rest.start, &mut made)?;
            }
        }
        if is_external && !is_weight {
            made.text(9, self.external(tensor)?);
        }
        Ok(made)
    }

    /// Reads the elements of a tensor from another file.
    fn external(&mut self, tensor: &Tensor) -> Result<Vec<u8>> {
        let TensorData::External { location, offset, length } = &tensor.data else { return Ok(Vec::new()) };
        let file = external::open(self.file, location)?;
        let n_bytes = length.unwrap_or(file.len().saturating_sub(*offset));
        let mut bytes = vec![0; self.charge(n_bytes)?];
        file.read_at(*offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes as they are.
    pub(super) fn raw(&mut self, span: Range<u64>, to: &mut WireMessage) -> Result<()> {
        let n = self.charge(span.end - span.start)?;
        let from = to.bytes.len();
        to.bytes.resize(from + n, 0);
        self.file.read_at(span.start, &mut to.bytes[from..])
    }

    fn charge(&mut self, n_bytes: u64) -> Result<usize> {
        match self.left.checked_sub(n_bytes) {
            Some(left) => self.left = left,
            None => {
                self.left = 0;
                return Err(too_large());
            }
        }
        usize::try_from(n_bytes).map_err(|_| too_large())
    }
}

fn too_large() -> Error {
    let limit = MAX_NETWORK_BYTES >> 20;
    Error::input(format!(
        "found more than {limit} MiB beside weights, expected less; store values as float initializers"
    ))
}
