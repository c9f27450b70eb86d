//! The network of a model without its weights, for outputs that hold the weights in another format.

use super::carried::too_large;
use super::external;
use super::fields::FieldReader;
use super::graph::Node;
use super::skeleton::{Skeleton, constant};
use super::tensor::{Tensor, TensorData};
use super::wire::WireValue;
use crate::InputFile;
use crate::onnx_write::WireMessage;
use briquette_core::Result;
use std::collections::BTreeSet;
use std::ops::Range;

/// The name of the network in an output directory.
pub const NETWORK_FILE: &str = "network.onnx";
/// The largest network that an output holds.
pub const MAX_NETWORK_BYTES: u64 = 256 << 20;
/// Floats up to this number may be settings of a node, such as the factors of `Resize`, and stay.
const MAX_SETTINGS: usize = 64;

/// Fields of a tensor with its elements, or with their place.
const DATA_FIELDS: [u32; 9] = [4, 5, 6, 7, 9, 10, 11, 13, 14];

/// Copies a model without the elements of its weights. Everything else is copied byte for byte; other elements of external
/// files move into the copy. `None` if the copy would have more than [`MAX_NETWORK_BYTES`].
///
/// # Errors
/// See [`Skeleton::read`].
pub fn network_of(file: &InputFile) -> Result<Option<Vec<u8>>> {
    let skeleton = Skeleton::read(InputFile::open(file.path())?)?;
    let is_left_out = |info: &&crate::TensorInfo| info.dtype.is_weight() && info.n_elements() > MAX_SETTINGS;
    let infos = skeleton.tensors.iter().map(|(info, ..)| info).filter(is_left_out);
    let weights = infos.map(|info| info.name.to_string()).collect();
    let mut copy = NetworkCopy { file, from: FieldReader::new(file), weights, left: MAX_NETWORK_BYTES };
    let whole = copy.from.wire.whole();
    match copy.message(whole, &Place { part: Part::Model, is_inner: false, name: None }) {
        Err(error) if copy.left == 0 => {
            drop(error);
            Ok(None)
        }
        made => Ok(Some(made?.bytes)),
    }
}

/// The kinds of messages with tensors below them.
#[derive(Clone, Copy)]
enum Part {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
}

impl Part {
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
    part: Part,
    /// Whether it is in a graph inside of a node, whose tensors are no weights of the checkpoint.
    is_inner: bool,
    /// The name of the value of a constant that counts as a weight.
    name: Option<String>,
}

pub(super) struct NetworkCopy<'a> {
    pub(super) file: &'a InputFile,
    pub(super) from: FieldReader<'a>,
    /// The names of tensors whose elements are left out.
    pub(super) weights: BTreeSet<String>,
    /// The bytes that the copy may still have.
    pub(super) left: u64,
}

impl NetworkCopy<'_> {
    fn message(&mut self, span: Range<u64>, place: &Place) -> Result<WireMessage> {
        if matches!(place.part, Part::Tensor) {
            return self.tensor(span, place);
        }
        let name = match place.part {
            Part::Node if !place.is_inner => {
                constant(&Node::read(&mut self.from, span.clone(), 1)?).map(|(name, _)| name.to_string())
            }
            _ => place.name.clone(),
        };
        let (mut rest, mut made) = (span, WireMessage::default());
        loop {
            let start = rest.start;
            let Some(field) = self.from.wire.field(&mut rest)? else { return Ok(made) };
            match (place.part.below(field.number), field.value) {
                (Some(part), WireValue::Span(span)) => {
                    let is_inner = place.is_inner || matches!((place.part, part), (Part::Attribute, Part::Graph));
                    let inner = self.message(span, &Place { part, is_inner, name: name.clone() })?;
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
        let place = Place { part: Part::Tensor, is_inner: true, name: None };
        Ok(self.tensor_parts(span, tensor, &place)?.bytes)
    }

    /// Returns the message of an attribute with all elements of its tensors.
    pub(super) fn whole_attribute(&mut self, span: Range<u64>) -> Result<Vec<u8>> {
        Ok(self.message(span, &Place { part: Part::Attribute, is_inner: true, name: None })?.bytes)
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
