//! The objects in a pickle and their references.

use super::value::{Node, Value, View};
use std::collections::{BTreeMap, BTreeSet};

/// The meaning of the persistent ids in a pickle, which refer to objects outside of it.
#[derive(Debug, Default)]
pub(crate) enum Outside {
    /// Storages, as written by `torch.save`.
    #[default]
    Storages,
    /// Storages. The pickle may also use classes of its TorchScript program.
    Script,
    /// Tensors by number, as in PyTorch before 0.1.10.
    Tensors(BTreeMap<i64, View>),
}

/// A parsed pickle.
#[derive(Debug, Default)]
pub(crate) struct Pickle {
    pub(super) nodes: Vec<Node>,
    pub(super) outside: Outside,
    /// The nodes that are objects of transposed convolutions.
    pub(super) transposed: BTreeSet<usize>,
}

impl Pickle {
    /// Returns the node of a value.
    pub(crate) fn node(&self, value: &Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(*index),
            _ => None,
        }
    }

    /// Returns whether a value is an object whose class is a transposed convolution.
    pub(super) fn is_transposed(&self, value: &Value) -> bool {
        matches!(value, Value::Node(index) if self.transposed.contains(index))
    }

    /// Returns the items of a tuple or a list.
    pub(crate) fn list(&self, value: &Value) -> Option<&[Value]> {
        match self.node(value) {
            Some(Node::List(items)) => Some(items),
            _ => None,
        }
    }

    /// Returns the items of a dictionary, or the attributes of an object.
    pub(crate) fn items(&self, value: &Value) -> Option<&[(Value, Value)]> {
        match self.node(value) {
            Some(Node::Dict(items)) => Some(items),
            Some(Node::Object(state)) => match self.node(state) {
                Some(Node::Dict(items)) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns all nodes of the pickle.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}
