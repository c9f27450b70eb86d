//! An ONNX model in memory, without the bytes of its weights.

use briquette_core::{DType, Error, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnnxType {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// 16-bit float with the range of `f32`.
    BF16,
    /// 64-bit float.
    F64,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 4-bit integer; two are in a byte, the first in the low bits.
    I4,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl OnnxType {
    const ALL: [Self; 10] =
        [Self::F32, Self::F16, Self::BF16, Self::F64, Self::U8, Self::I8, Self::I4, Self::I32, Self::I64, Self::Bool];

    /// Returns the number of `TensorProto.DataType`.
    pub fn number(self) -> i64 {
        match self {
            Self::F32 => 1,
            Self::U8 => 2,
            Self::I8 => 3,
            Self::I32 => 6,
            Self::I64 => 7,
            Self::Bool => 9,
            Self::F16 => 10,
            Self::F64 => 11,
            Self::BF16 => 16,
            Self::I4 => 22,
        }
    }

    /// Returns the type with this number, if this program writes it.
    pub fn numbered(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.number() == number)
    }

    /// Returns the size of an element in bits.
    pub fn n_bits(self) -> u64 {
        match self {
            Self::I64 | Self::F64 => 64,
            Self::F32 | Self::I32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::U8 | Self::I8 | Self::Bool => 8,
            Self::I4 => 4,
        }
    }
}

impl TryFrom<DType> for OnnxType {
    type Error = Error;

    fn try_from(dtype: DType) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::F64 => Self::F64,
            other => {
                return Err(Error::config(format!(
                    "found weights in {other}, which an ONNX model cannot get from a checkpoint"
                )));
            }
        })
    }
}

/// The extent of an axis of an input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnnxDim {
    /// A number.
    Fixed(usize),
    /// Any number; equal names have equal extents.
    Named(&'static str),
}

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxValue {
    /// The name.
    pub name: String,
    /// Element type.
    pub dtype: OnnxType,
    /// Extents.
    pub shape: Vec<OnnxDim>,
    /// The message of the file that it comes from, which is written as it is.
    pub encoded: Option<Vec<u8>>,
}

impl OnnxValue {
    /// Describes a value.
    pub fn new(name: impl Into<String>, dtype: OnnxType, shape: Vec<OnnxDim>) -> Self {
        Self { name: name.into(), dtype, shape, encoded: None }
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum OnnxAttribute {
    /// A float.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A string.
    Text(Cow<'static, str>),
    /// The elements of a small tensor of a file. It is written as it was.
    Elements(Vec<f64>),
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OnnxNode {
    /// The name.
    pub name: String,
    /// The operator.
    pub op: Cow<'static, str>,
    /// The operator's domain; empty for ONNX's own.
    pub domain: Cow<'static, str>,
    /// Names of values and tensors. An empty name is an absent input.
    pub inputs: Vec<String>,
    /// Names of values.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: Vec<(Cow<'static, str>, OnnxAttribute)>,
    /// The fields of a node that a file has.
    pub carried: Option<CarriedNode>,
}

/// A node of a file, beside the names of its inputs and outputs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CarriedNode {
    /// The fields before the attributes. They are written as they are: the operator of the node only describes it.
    pub before: Vec<u8>,
    /// The messages of the attributes by name.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// The fields after the first attribute that are none.
    pub after: Vec<u8>,
    /// Names that graphs inside of the node use.
    pub inner: Vec<String>,
}

impl OnnxNode {
    /// Describes an operation of this program. Its name is that of its first output.
    pub fn new(
        (domain, op): (&'static str, &'static str),
        inputs: Vec<String>,
        outputs: Vec<String>,
        attributes: Vec<(&'static str, OnnxAttribute)>,
    ) -> Self {
        let attributes = attributes.into_iter().map(|(name, value)| (Cow::from(name), value)).collect();
        let name = outputs.first().cloned().unwrap_or_default();
        Self { name, op: op.into(), domain: domain.into(), inputs, outputs, attributes, carried: None }
    }

    /// Returns the names that the node uses.
    pub fn uses(&self) -> impl Iterator<Item = &String> {
        self.inputs.iter().chain(self.carried.iter().flat_map(|carried| &carried.inner))
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&OnnxAttribute> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns an integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        match self.attribute(name) {
            Some(OnnxAttribute::Int(value)) => *value,
            _ => default,
        }
    }
}

/// The bytes of a tensor, little-endian and row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnnxData {
    /// In memory.
    Inline(Vec<u8>),
    /// From a source, by its index.
    Streamed(usize),
    /// The whole message of a file, which is written as it is.
    Encoded(Vec<u8>),
}

/// A constant tensor: a weight, or a number of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxTensor {
    /// The name.
    pub name: String,
    /// Element type.
    pub dtype: OnnxType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The bytes.
    pub data: OnnxData,
}

impl OnnxTensor {
    /// Returns the size in bytes.
    ///
    /// # Errors
    /// Input: it has more bytes than a file can have.
    pub fn n_bytes(&self) -> Result<u64> {
        let n = self.shape.iter().try_fold(self.dtype.n_bits(), |n, &extent| n.checked_mul(extent as u64));
        n.map(|n| n.div_ceil(8)).filter(|n| i64::try_from(*n).is_ok()).ok_or_else(|| {
            Error::input(format!("found the shape {:?}, which has no size in bytes", self.shape)).at(&self.name)
        })
    }
}

/// A model: nodes in order, constants, inputs and outputs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OnnxModel {
    /// The graph's name.
    pub name: String,
    /// The version of ONNX's operators.
    pub opset: i64,
    /// The operations, each after the operations it depends on.
    pub nodes: Vec<OnnxNode>,
    /// The inputs.
    pub inputs: Vec<OnnxValue>,
    /// The outputs.
    pub outputs: Vec<OnnxValue>,
    /// The constants.
    pub tensors: Vec<OnnxTensor>,
    /// Strings by key: how the model was made.
    pub metadata: Vec<(String, String)>,
    /// The fields of a model that a file has.
    pub carried: Option<CarriedModel>,
}

/// The fields of a file beside nodes, tensors, inputs and outputs, which are written as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CarriedModel {
    /// The version of the file format.
    pub ir_version: i64,
    /// The versions of the operators of other domains.
    pub domains: BTreeMap<String, i64>,
    /// Other fields of the model, such as its functions.
    pub fields: Vec<u8>,
    /// Other fields of the graph.
    pub graph_fields: Vec<u8>,
    /// Types and shapes of values, by name.
    pub values: Vec<(String, Vec<u8>)>,
    /// Element types of inputs, outputs and values, by name, as far as the file has them.
    pub types: BTreeMap<String, OnnxType>,
}
