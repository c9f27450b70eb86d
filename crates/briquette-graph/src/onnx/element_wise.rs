//! Functions of elements.

use super::attributes::{float, text};
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use crate::graph::Operand;
use crate::op::{ElementFunction, Primitive};
use briquette_formats::onnx::Constant;

/// Functions of one input by the names of ONNX. Each keeps its name where no family uses it.
const UNARY: [&str; 37] = [
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Softsign",
    "Mish",
    "ThresholdedRelu",
    "Not",
    "IsNaN",
    "IsInf",
    "Clip",
    "Shrink",
    "HardSigmoid",
    "Swish",
    "BitwiseNot",
];

/// Functions of several inputs, which broadcast.
const SEVERAL: [&str; 23] = [
    "Div",
    "Pow",
    "Mod",
    "Min",
    "Max",
    "Sum",
    "Mean",
    "Where",
    "PRelu",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "Xor",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Add",
    "Mul",
];

/// Imports a function of elements; `None` for other operators.
pub(super) fn import(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let name = given.node.op_type.as_str();
    match name {
        // Types are no part of the graph.
        "Identity" | "Cast" | "CastLike" => Some(vec![given.get(0)?.clone()]),
        "Dropout" if given.node.outputs.len() == 1 => Some(vec![given.get(0)?.clone()]),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" => binary(to, given),
        "QuantizeLinear" | "DequantizeLinear" => rescaled(to, given),
        "BiasGelu" | "FastGelu" if given.has(1) => biased(to, given),
        _ => {
            let function = unary(to, given)?;
            let x = to.operand(given.get(0)?)?;
            let x = to.emit(Primitive::Elementwise(function), &[x])?;
            Some(vec![Item::Value(x)])
        }
    }
    .or_else(|| several(to, given))
}

/// The function of an operator with one input.
fn unary(to: &Importer, given: &NodeInputs) -> Option<ElementFunction> {
    let node = given.node;
    Some(match node.op_type.as_str() {
        "Relu" => ElementFunction::Relu,
        "Sigmoid" => ElementFunction::Sigmoid,
        "Tanh" => ElementFunction::Tanh,
        "Neg" => ElementFunction::Neg,
        "HardSwish" => ElementFunction::HardSwish,
        "QuickGelu" if (float(node, "alpha", 1.702) - 1.702).abs() < 1e-3 => ElementFunction::QuickGelu,
        "FastGelu" if !given.has(1) => ElementFunction::GeluTanh,
        "Gelu" if text(node, "approximate", "none") == "tanh" => ElementFunction::GeluTanh,
        "Gelu" => ElementFunction::Gelu,
        "Swish" if (float(node, "alpha", 1.0) - 1.0).abs() < 1e-6 => ElementFunction::Silu,
        "HardSigmoid" if (float(node, "alpha", 0.2) - 1.0 / 6.0).abs() < 1e-4 => ElementFunction::HardSigmoid,
        "Clip" if bounds(to, given) == (Some(0.0), Some(6.0)) => ElementFunction::Relu6,
        name => ElementFunction::Foreign(UNARY.into_iter().find(|known| *known == name)?),
    })
}

/// The bounds of a `Clip`: inputs since opset 11.
fn bounds(to: &Importer, given: &NodeInputs) -> (Option<f64>, Option<f64>) {
    let bound = |position: usize| to.values(given.get(position)?)?.values.first().copied();
    (bound(1), bound(2))
}

/// Sums, differences, products, quotients and powers. A known number is part of the function.
fn binary(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (a, b) = (given.get(0)?, given.get(1)?);
    let scalar = |to: &Importer, item: &Item, other: &Item| -> Option<f64> {
        let Constant { shape, values, .. } = to.known(item)?;
        let does_not_broadcast = shape.len() <= to.shape(other)?.len();
        (values.len() == 1 && does_not_broadcast).then(|| values[0])
    };
    let of = |op: Primitive, x: &Item, to: &mut Importer| {
        let x = to.operand(x)?;
        Some(vec![Item::Value(to.emit(op, &[x])?)])
    };
    let foreign = |name| Primitive::Elementwise(ElementFunction::Foreign(name));
    let name = given.node.op_type.as_str();
    if let Some(number) = scalar(to, b, a) {
        let op = match name {
            "Mul" => Primitive::Scale(number),
            "Div" => Primitive::Scale(1.0 / number),
            "Pow" if number == 2.0 => Primitive::Elementwise(ElementFunction::Square),
            "Pow" => foreign("power by a constant"),
            "Add" | "Sub" if number == 0.0 => return Some(vec![a.clone()]),
            _ => foreign("add a constant"),
        };
        return of(op, a, to);
    }
    if let Some(number) = scalar(to, a, b) {
        let op = match name {
            "Mul" => Primitive::Scale(number),
            "Add" if number == 0.0 => return Some(vec![b.clone()]),
            "Add" | "Sub" => foreign("add to a constant"),
            "Div" => foreign("divide a constant"),
            _ => foreign("power of a constant"),
        };
        return of(op, b, to);
    }
    let function = match name {
        "Add" => ElementFunction::Add,
        "Sub" => ElementFunction::Sub,
        "Mul" => ElementFunction::Mul,
        _ => return several(to, given),
    };
    let operands = [to.operand(a)?, to.operand(b)?];
    Some(vec![Item::Value(to.emit(Primitive::Elementwise(function), &operands)?)])
}

/// Functions of several inputs. Single known numbers are part of the function.
fn several(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let name = SEVERAL.into_iter().find(|known| *known == given.node.op_type)?;
    let mut operands: Vec<Operand> = Vec::new();
    for position in 0..given.items.len() {
        let item = given.get(position)?;
        match to.known(item) {
            Some(constant) if constant.values.len() == 1 => {}
            _ => operands.push(to.operand(item)?),
        }
    }
    let value = to.emit(Primitive::Elementwise(ElementFunction::Foreign(name)), &operands)?;
    Some(vec![Item::Value(value)])
}

/// Imports onnxruntime's GELU of a sum with a bias.
fn biased(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let operands = [to.operand(given.get(0)?)?, to.operand(given.get(1)?)?];
    let sum = to.emit(Primitive::Elementwise(ElementFunction::Add), &operands)?;
    let function = if given.node.op_type == "BiasGelu" { ElementFunction::Gelu } else { ElementFunction::GeluTanh };
    Some(vec![Item::Value(to.emit(Primitive::Elementwise(function), &[sum.into()])?)])
}

/// Products with scales. Scales along one axis are vectors of this axis.
fn rescaled(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (x, scale) = (given.get(0)?, given.get(1)?);
    let name = if given.node.op_type == "QuantizeLinear" { "QuantizeLinear" } else { "DequantizeLinear" };
    let operand = to.operand(x)?;
    if to.shape(scale)?.iter().product::<usize>() == 1 {
        let value = to.emit(Primitive::Elementwise(ElementFunction::Foreign(name)), &[operand])?;
        return Some(vec![Item::Value(value)]);
    }
    let axis = given.axis(to, 1)?;
    let mut operands = vec![operand];
    for position in 1..given.items.len() {
        operands.extend(given.get(position).and_then(|item| to.operand(item)));
    }
    Some(vec![Item::Value(to.emit(Primitive::PerChannel { axis }, &operands)?)])
}
