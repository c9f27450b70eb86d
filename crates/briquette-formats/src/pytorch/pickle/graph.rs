//! The objects that a pickle describes, as they refer to each other.

use super::value::{Node, Value, View};
use std::collections::{BTreeMap, BTreeSet};

/// What the persistent ids of a pickle stand for: objects that are kept beside it.
#[derive(Debug, Default)]
pub(crate) enum Outside {
    /// Storages, as `torch.save` has it.
    #[default]
    Storages,
    /// Storages; and the pickle may name classes of its TorchScript program.
    Script,
    /// Tensors by number, as PyTorch before 0.1.10 had it.
    Tensors(BTreeMap<i64, View>),
}

/// A pickle that was run through.
#[derive(Debug, Default)]
pub(crate) struct Pickle {
    pub(super) nodes: Vec<Node>,
    pub(super) outside: Outside,
    /// The nodes that are objects of transposed convolutions.
    pub(super) transposed: BTreeSet<usize>,
}

impl Pickle {
    /// What a value refers to.
    pub(crate) fn node(&self, value: &Value) -> Option<&Node> {
        match value {
            Value::Node(index) => self.nodes.get(*index),
            _ => None,
        }
    }

    /// Whether a value is an object whose class is a transposed convolution.
    pub(super) fn is_transposed(&self, value: &Value) -> bool {
        matches!(value, Value::Node(index) if self.transposed.contains(index))
    }

    /// The items of a tuple or a list.
    pub(crate) fn list(&self, value: &Value) -> Option<&[Value]> {
        match self.node(value) {
            Some(Node::List(items)) => Some(items),
            _ => None,
        }
    }

    /// The items of a dictionary, or the attributes of an object.
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

    /// Every storage and tensor that was met, wherever.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}
