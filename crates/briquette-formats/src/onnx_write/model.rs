//! An ONNX model in memory, without the bytes of its weights.

use briquette_core::{Error, Result};

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnnxType {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl OnnxType {
    const ALL: [Self; 7] = [Self::F32, Self::F16, Self::U8, Self::I8, Self::I32, Self::I64, Self::Bool];

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
        }
    }

    /// Returns the type with this number, if this program writes it.
    pub(super) fn numbered(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.number() == number)
    }

    /// Returns the size of an element in bytes.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 => 2,
            Self::U8 | Self::I8 | Self::Bool => 1,
        }
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
    Text(&'static str),
}

/// An operation.
#[derive(Debug, Clone, PartialEq)]
pub struct OnnxNode {
    /// The name.
    pub name: String,
    /// The operator.
    pub op: &'static str,
    /// The operator's domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Names of values and tensors. An empty name is an absent input.
    pub inputs: Vec<String>,
    /// Names of values.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: Vec<(&'static str, OnnxAttribute)>,
}

/// The bytes of a tensor, little-endian and row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnnxData {
    /// In memory.
    Inline(Vec<u8>),
    /// From a source, by its index.
    Streamed(usize),
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
        let n = self.shape.iter().try_fold(self.dtype.n_bytes() as u64, |n, &extent| n.checked_mul(extent as u64));
        n.filter(|n| i64::try_from(*n).is_ok()).ok_or_else(|| {
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
}
