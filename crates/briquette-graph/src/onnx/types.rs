//! Types of values: integers and truth values are computed as floats, but conversions round them.

use super::attributes::int;
use super::importer::{Importer, is_integer_type};
use super::inputs::NodeInputs;
use super::item::Item;
use crate::op::{ElementFunction, Primitive};
use briquette_formats::onnx::{AttributeValue, Node};

/// Truth values in `TensorProto.DataType`.
const BOOL: i64 = 9;

/// Returns whether the outputs of a node are integers or truth values.
pub(super) fn gives_integers(to: &Importer, node: &Node, inputs: &[Option<Item>]) -> bool {
    let is_integer = |at: usize| inputs.get(at).and_then(Option::as_ref).is_some_and(|item| to.is_integer(item));
    match node.op_type.as_str() {
        "Cast" => is_integer_type(int(node, "to", 1)),
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" | "ArgMax" | "ArgMin" => true,
        "Where" => is_integer(1) && is_integer(2),
        "CastLike" => is_integer(1),
        // The first input is a shape.
        "ConstantOfShape" => match node.attribute("value") {
            Some(AttributeValue::Tensor(tensor)) => is_integer_type(tensor.data_type),
            _ => false,
        },
        // Codes are decoded.
        "GatherBlockQuantized" => false,
        _ => is_integer(0) && !node.op_type.ends_with("Linear"),
    }
}

/// Imports a conversion. In a graph for running, it rounds toward zero, or gives truth values.
pub(super) fn cast(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let from_integers = to.is_integer(x);
    let target = int(given.node, "to", 1);
    let name = match target {
        _ if !to.runs || given.node.op_type != "Cast" => return Some(vec![x.clone()]),
        BOOL => "IsNonzero",
        target if is_integer_type(target) == from_integers => return Some(vec![x.clone()]),
        target if is_integer_type(target) => "Truncate",
        _ => "Cast",
    };
    let operand = to.operand(x)?;
    let value = to.emit(Primitive::Elementwise(ElementFunction::Foreign(name)), &[operand])?;
    Some(vec![Item::Value(value)])
}
