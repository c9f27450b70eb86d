//! Removes nodes of an ONNX file that nothing uses any more.

use briquette_formats::onnx_write::{OnnxModel, OnnxNode};
use std::collections::BTreeSet;

/// Returns the names that nodes or outputs of a model use.
pub(super) fn used_names(model: &OnnxModel) -> BTreeSet<String> {
    let outputs = model.outputs.iter().map(|output| &output.name);
    model.nodes.iter().flat_map(OnnxNode::uses).chain(outputs).cloned().collect()
}

/// Removes nodes whose results were used `before` and no longer are. Nodes that nothing ever used stay.
pub(super) fn remove_unused(model: &mut OnnxModel, before: &BTreeSet<String>) {
    loop {
        let (now, n) = (used_names(model), model.nodes.len());
        let is_used = |node: &OnnxNode| node.outputs.iter().any(|name| now.contains(name));
        let was_used = |node: &OnnxNode| node.outputs.iter().any(|name| before.contains(name));
        model.nodes.retain(|node| is_used(node) || !was_used(node));
        if model.nodes.len() == n {
            return;
        }
    }
}
