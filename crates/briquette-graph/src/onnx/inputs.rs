//! A node with the items of its inputs.

use super::attributes::{axis, int};
use super::importer::Importer;
use super::item::{self, Item};
use briquette_formats::onnx::Node;

/// A node with the items of its inputs.
pub(super) struct NodeInputs<'a> {
    pub(super) node: &'a Node,
    pub(super) items: &'a [Option<Item>],
}

impl NodeInputs<'_> {
    /// The input at a position; `None` if it is absent.
    pub(super) fn get(&self, position: usize) -> Option<&Item> {
        self.items.get(position)?.as_ref()
    }

    /// Whether an input is given at a position.
    pub(super) fn has(&self, position: usize) -> bool {
        self.get(position).is_some()
    }

    /// The values of an input that is a parameter, such as axes.
    pub(super) fn integers(&self, to: &Importer, position: usize) -> Option<Vec<i64>> {
        Some(item::integers(&to.values(self.get(position)?)?))
    }

    /// An attribute with an axis of the first input.
    pub(super) fn axis(&self, to: &Importer, default: i64) -> Option<usize> {
        let rank = to.shape(self.get(0)?)?.len();
        axis(int(self.node, "axis", default), rank)
    }
}
