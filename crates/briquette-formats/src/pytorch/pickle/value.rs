//! Values and objects in a pickle.

use super::names::PickleName;
use briquette_core::DType;
use std::sync::Arc;

/// A value on the stack or in the memo.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A value that does not matter.
    Other,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Text(Arc<str>),
    /// An allowed name.
    Name(PickleName),
    /// The index of a node. Nodes are shared and changed in place, as objects in Python.
    Node(usize),
}

/// An object that a value can refer to.
#[derive(Debug)]
pub(crate) enum Node {
    /// A tuple or a list.
    List(Vec<Value>),
    /// A dictionary, in insertion order.
    Dict(Vec<(Value, Value)>),
    /// The storage of tensors.
    Storage(TorchStorage),
    /// A view of a storage. It is boxed, as a pickle can have two million nodes.
    Tensor(Box<View>),
    /// An object of a TorchScript program with its state, mostly the dictionary of its attributes.
    Object(Value),
}

impl Node {
    /// Returns the heap memory of the node in bytes.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::List(items) => items.len().max(1) * size_of::<Value>(),
            Self::Dict(items) => items.len().max(1) * size_of::<(Value, Value)>(),
            Self::Storage(_) | Self::Object(_) => 0,
            Self::Tensor(view) => size_of::<View>() + (view.shape.len() + view.strides.len()) * size_of::<usize>(),
        }
    }
}

/// A storage, as declared.
#[derive(Debug, Clone)]
pub(crate) struct TorchStorage {
    /// The key: the entry below `data/` in an archive.
    pub(crate) key: Arc<str>,
    /// The element type; `None` for untyped bytes.
    pub(crate) dtype: Option<DType>,
    /// Elements stored under this key.
    pub(crate) n_stored: u64,
    /// The first element of the storage. In files before 1.6, a storage may be a view of another.
    pub(crate) first: u64,
    /// Number of elements.
    pub(crate) n_elements: u64,
}

impl TorchStorage {
    /// Returns the number of bytes per element.
    pub(crate) fn width(&self) -> u64 {
        self.dtype.map_or(1, |dtype| dtype.n_bits() as u64 / 8)
    }
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// The storage of the tensor.
    pub(crate) storage: TorchStorage,
    /// Element type.
    pub(crate) dtype: DType,
    /// First element.
    pub(crate) offset: u64,
    /// Extents.
    pub(crate) shape: Vec<usize>,
    /// Strides, in elements.
    pub(crate) strides: Vec<usize>,
}
