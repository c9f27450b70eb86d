//! Functions of elements.

use super::attributes::{float, int, text};
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use super::quantized;
use super::types::cast;
use crate::graph::{Operand, ValueId};
use crate::op::{ElementFunction, NumberFunction, Primitive};
use briquette_formats::onnx::Constant;

/// Functions of one input by the names of ONNX. Each keeps its name where no family uses it.
const UNARY: [&str; 32] = [
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
    "Selu",
    "Celu",
    "Softplus",
    "Softsign",
    "Mish",
    "ThresholdedRelu",
    "Not",
    "IsNaN",
    "IsInf",
    "Shrink",
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

/// Returns whether a `Dropout` may drop elements: one that is told to train, with a share above 0.
fn drops(to: &Importer, given: &NodeInputs) -> bool {
    let may_be = |at: usize, default: f64| match given.get(at) {
        Some(item) => to.values(item).is_none_or(|found| found.values != [0.0]),
        None => default != 0.0,
    };
    may_be(2, 0.0) && may_be(1, 0.5)
}

/// Imports a function of elements; `None` for other operators.
pub(super) fn import(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let name = given.node.op_type.as_str();
    match name {
        "Identity" => Some(vec![given.get(0)?.clone()]),
        "Cast" | "CastLike" => cast(to, given),
        "Dropout" if given.node.outputs.len() == 1 && !drops(to, given) => Some(vec![given.get(0)?.clone()]),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" => binary(to, given),
        "QuantizeLinear" if to.runs => quantized::quantize(to, given),
        "DequantizeLinear" if to.runs => quantized::dequantize(to, given),
        "QuantizeLinear" | "DequantizeLinear" => rescaled(to, given),
        "BiasGelu" | "FastGelu" if given.has(1) => biased(to, given),
        "Clip" if bounds(to, given) != (Some(0.0), Some(6.0)) => clip(to, given),
        "Selu" | "Celu" if to.runs => parametric(to, given),
        "LeakyRelu" | "Elu" | "HardSigmoid" | "Swish" if unary(to, given).is_none() => parametric(to, given),
        _ => match unary(to, given) {
            Some(function) => {
                let x = to.operand(given.get(0)?)?;
                let x = to.emit(Primitive::Elementwise(function), &[x])?;
                Some(vec![Item::Value(x)])
            }
            None => None,
        },
    }
    .or_else(|| several(to, given))
}

/// Imports functions with numbers in their attributes.
fn parametric(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let node = given.node;
    let x = to.operand(given.get(0)?)?;
    let value = match node.op_type.as_str() {
        "LeakyRelu" => number(to, x, NumberFunction::LeakyRelu, float(node, "alpha", 0.01))?,
        "Elu" => number(to, x, NumberFunction::Elu, float(node, "alpha", 1.0))?,
        "Selu" => {
            let found = number(to, x, NumberFunction::Elu, float(node, "alpha", 1.673_263_2))?;
            to.emit(Primitive::Scale(float(node, "gamma", 1.050_701)), &[found.into()])?
        }
        "Celu" => {
            let alpha = float(node, "alpha", 1.0);
            let scaled = to.emit(Primitive::Scale(1.0 / alpha), &[x])?;
            let found = number(to, scaled.into(), NumberFunction::Elu, 1.0)?;
            to.emit(Primitive::Scale(alpha), &[found.into()])?
        }
        "Swish" => {
            let scaled = to.emit(Primitive::Scale(float(node, "alpha", 1.0)), &[x])?;
            let gate = to.emit(Primitive::Elementwise(ElementFunction::Sigmoid), &[scaled.into()])?;
            to.emit(Primitive::Elementwise(ElementFunction::Mul), &[x, gate.into()])?
        }
        _ => {
            let scaled = to.emit(Primitive::Scale(float(node, "alpha", 0.2)), &[x])?;
            let moved = number(to, scaled.into(), NumberFunction::Add, float(node, "beta", 0.5))?;
            let above = number(to, moved.into(), NumberFunction::AtLeast, 0.0)?;
            number(to, above.into(), NumberFunction::AtMost, 1.0)?
        }
    };
    Some(vec![Item::Value(value)])
}

fn number(to: &mut Importer, x: Operand, function: NumberFunction, number: f64) -> Option<ValueId> {
    to.emit(Primitive::Number { function, number }, &[x])
}

/// Imports a `Clip` as a maximum and a minimum. Bounds must be known.
fn clip(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let attribute = |name: &str| given.node.attribute(name).map(|_| float(given.node, name, 0.0));
    let (low, high) = bounds(to, given);
    let is_known = |position: usize, bound: Option<f64>| bound.is_some() || !given.has(position);
    (is_known(1, low) && is_known(2, high)).then_some(())?;
    let mut item = given.get(0)?.clone();
    let ends =
        [(NumberFunction::AtLeast, low.or(attribute("min"))), (NumberFunction::AtMost, high.or(attribute("max")))];
    for (function, bound) in ends {
        if let Some(bound) = bound {
            let x = to.operand(&item)?;
            item = Item::Value(number(to, x, function, bound)?);
        }
    }
    Some(vec![item])
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
        "HardSigmoid" if is_usual_hard_sigmoid(node) => ElementFunction::HardSigmoid,
        "Clip" if bounds(to, given) == (Some(0.0), Some(6.0)) => ElementFunction::Relu6,
        name => ElementFunction::Foreign(UNARY.into_iter().find(|known| *known == name)?),
    })
}

fn is_usual_hard_sigmoid(node: &briquette_formats::onnx::Node) -> bool {
    (float(node, "alpha", 0.2) - 1.0 / 6.0).abs() < 1e-4 && (float(node, "beta", 0.5) - 0.5).abs() < 1e-6
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
    let with = |function, number| Primitive::Number { function, number };
    let name = given.node.op_type.as_str();
    if let Some(number) = scalar(to, b, a) {
        let op = match name {
            "Mul" => Primitive::Scale(number),
            "Div" if to.is_integer(a) && to.is_integer(b) => with(NumberFunction::Quotient, number),
            // The reciprocal of another number is rounded, so that truncated quotients would differ.
            "Div" if to.runs && (number as f32).abs().log2().fract() != 0.0 => with(NumberFunction::DivideBy, number),
            "Div" => Primitive::Scale(1.0 / number),
            "Pow" if number == 2.0 => Primitive::Elementwise(ElementFunction::Square),
            "Pow" if number == 0.5 => Primitive::Elementwise(ElementFunction::Foreign("Sqrt")),
            "Pow" => with(NumberFunction::Power, number),
            "Add" | "Sub" if number == 0.0 => return Some(vec![a.clone()]),
            "Sub" => with(NumberFunction::Add, -number),
            _ => with(NumberFunction::Add, number),
        };
        return of(op, a, to);
    }
    if let Some(number) = scalar(to, a, b) {
        let op = match name {
            "Mul" => Primitive::Scale(number),
            "Add" if number == 0.0 => return Some(vec![b.clone()]),
            "Add" => with(NumberFunction::Add, number),
            "Sub" => with(NumberFunction::SubtractFrom, number),
            "Div" if to.is_integer(a) && to.is_integer(b) => return several(to, given),
            "Div" => with(NumberFunction::Divide, number),
            _ => with(NumberFunction::PowerOf, number),
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

/// Functions of several inputs.
fn several(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let name = SEVERAL.into_iter().find(|known| *known == given.node.op_type)?;
    let has_integers = given.get(0).is_some_and(|item| to.is_integer(item));
    if to.runs && int(given.node, "fmod", 0) != 0 {
        return None;
    }
    let mut operands: Vec<Operand> = Vec::new();
    for position in 0..given.items.len() {
        let item = given.get(position)?;
        // Coupling does not depend on a single number.
        let is_number = !to.runs && to.known(item).is_some_and(|constant| constant.values.len() == 1);
        if !is_number {
            operands.push(to.operand(item)?);
        }
    }
    let mut value = to.emit(Primitive::Elementwise(ElementFunction::Foreign(name)), &operands)?;
    if to.runs && name == "Div" && has_integers {
        value = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Truncate")), &[value.into()])?;
    }
    Some(vec![Item::Value(value)])
}

/// Adds a choice between two items of one shape by a condition.
pub(super) fn chosen(to: &mut Importer, condition: &Item, a: &Item, b: &Item) -> Option<Item> {
    (to.shape(a)? == to.shape(b)?).then_some(())?;
    let is_integer = to.is_integer(a) && to.is_integer(b);
    let operands = [to.operand(condition)?, to.operand(a)?, to.operand(b)?];
    let found = Item::Value(to.emit(Primitive::Elementwise(ElementFunction::Foreign("Where")), &operands)?);
    if is_integer {
        to.mark_integer(&found);
    }
    Some(found)
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
