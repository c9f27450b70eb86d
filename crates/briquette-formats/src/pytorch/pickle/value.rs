//! What a pickle describes.

use super::names::PickleName;
use briquette_core::DType;
use std::sync::Arc;

/// A value on the stack or in the memo.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Anything whose value does not matter.
    Other,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A string.
    Text(Arc<str>),
    /// A name from the list.
    Name(PickleName),
    /// A place among the nodes: shared, and changed in place, as Python objects are.
    Node(usize),
}

/// What a value can refer to.
#[derive(Debug)]
pub(crate) enum Node {
    /// A tuple or a list.
    List(Vec<Value>),
    /// A dictionary, in the order its keys were set.
    Dict(Vec<(Value, Value)>),
    /// The bytes behind tensors.
    Storage(TorchStorage),
    /// A view of a storage, boxed: a pickle can have two million nodes.
    Tensor(Box<View>),
    /// An object of a TorchScript program, with its state: most often the dictionary of its attributes.
    Object(Value),
}

impl Node {
    /// What it holds beyond itself.
    pub(super) fn n_bytes(&self) -> usize {
        match self {
            Self::List(items) => items.len().max(1) * size_of::<Value>(),
            Self::Dict(items) => items.len().max(1) * size_of::<(Value, Value)>(),
            Self::Storage(_) | Self::Object(_) => 0,
            Self::Tensor(view) => size_of::<View>() + (view.shape.len() + view.strides.len()) * size_of::<usize>(),
        }
    }
}

/// The bytes behind tensors, as declared.
#[derive(Debug, Clone)]
pub(crate) struct TorchStorage {
    /// Its name: the entry below `data/` of an archive.
    pub(crate) key: Arc<str>,
    /// Its type; none for bytes.
    pub(crate) dtype: Option<DType>,
    /// Elements that are stored under this name.
    pub(crate) n_stored: u64,
    /// The first of them that is part of it: files of before 1.6 have storages that are views of others.
    pub(crate) first: u64,
    /// How many are.
    pub(crate) n_elements: u64,
}

impl TorchStorage {
    /// Bytes of an element.
    pub(crate) fn width(&self) -> u64 {
        self.dtype.map_or(1, |dtype| dtype.n_bits() as u64 / 8)
    }
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// What it is a view of.
    pub(crate) storage: TorchStorage,
    /// Type of its elements.
    pub(crate) dtype: DType,
    /// First element.
    pub(crate) offset: u64,
    /// Extents.
    pub(crate) shape: Vec<usize>,
    /// Steps, in elements.
    pub(crate) strides: Vec<usize>,
}
