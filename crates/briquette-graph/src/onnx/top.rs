//! The largest and smallest elements along an axis: `TopK`, `ArgMax` and `ArgMin`.

use super::attributes::int;
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use super::layout::reshaped;
use super::scatter::elements_at;
use crate::op::Primitive;
use briquette_formats::onnx::Node;

/// Imports the index of the largest or smallest element.
pub(super) fn arg_max(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let axis = given.axis(to, 0)?;
    let last_first = int(given.node, "select_last_index", 0) != 0;
    let op = Primitive::TopIndices { axis, n: 1, largest: given.node.op_type == "ArgMax", last_first };
    let x = to.operand(given.get(0)?)?;
    let found = Item::Value(to.emit(op, &[x])?);
    if int(given.node, "keepdims", 1) != 0 {
        return Some(vec![found]);
    }
    let mut rest = to.shape(&found)?;
    rest.remove(axis);
    Some(vec![reshaped(to, &found, rest)?])
}

/// Imports the largest or smallest elements and their indices.
pub(super) fn top_k(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let axis = given.axis(to, -1)?;
    let n = number_of(to, given)?;
    let op = Primitive::TopIndices { axis, n, largest: int(given.node, "largest", 1) != 0, last_first: false };
    let item = given.get(0)?;
    let x = to.operand(item)?;
    let indices = Item::Value(to.emit(op, &[x])?);
    to.mark_integer(&indices);
    let values = elements_at(to, item, &indices, axis)?;
    Some(vec![values, indices])
}

/// The number of elements: an input, or an attribute before opset 10.
fn number_of(to: &Importer, given: &NodeInputs) -> Option<usize> {
    let of_node = |node: &Node| node.attribute("k").is_some().then(|| int(node, "k", 0));
    let number = match given.integers(to, 1) {
        Some(found) => *found.first()?,
        None => of_node(given.node)?,
    };
    usize::try_from(number).ok()
}
