//! Operators without a rule. They keep their name, and all their axes are fixed.

use super::importer::Importer;
use super::item::Item;
use crate::graph::Operand;
use crate::op::Primitive;
use briquette_formats::onnx::Node;

/// Imports a node without a rule. Its outputs have the shapes that the file declares, or none.
pub(super) fn import(to: &mut Importer, node: &Node, inputs: &[Option<Item>]) -> Vec<Item> {
    let declared: Vec<Option<Vec<usize>>> = node.outputs.iter().map(|name| to.declared_shape(name)).collect();
    with_shapes(to, node, inputs, &declared).unwrap_or_default()
}

/// Imports a node without a rule whose outputs have these shapes.
pub(super) fn with_shapes(
    to: &mut Importer,
    node: &Node,
    inputs: &[Option<Item>],
    shapes: &[Option<Vec<usize>>],
) -> Option<Vec<Item>> {
    let operands: Vec<Operand> = inputs.iter().flatten().filter_map(|item| operand(to, item)).collect();
    // A value without a known shape is a scalar for the shape rules. Operators that use it have no rule either.
    let given = shapes.iter().map(|shape| shape.clone().unwrap_or_default()).collect();
    let values = to.emit_all(Primitive::Unknown { name: node.op_type.clone(), shapes: given }, &operands)?;
    let item = |(value, shape): (_, &Option<Vec<usize>>)| match shape {
        Some(_) => Item::Value(value),
        None => Item::Opaque(value),
    };
    Some(values.into_iter().zip(shapes).map(item).collect())
}

fn operand(to: &mut Importer, item: &Item) -> Option<Operand> {
    match item {
        Item::Opaque(value) => Some((*value).into()),
        // Known values fix nothing.
        Item::Known(_) => None,
        _ => to.operand(item),
    }
}
