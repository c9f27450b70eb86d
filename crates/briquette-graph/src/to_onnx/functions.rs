//! Functions of elements.

use super::emitter::Emitter;
use crate::graph::NodeId;
use crate::op::ElementFunction;
use briquette_core::Result;
use briquette_formats::onnx_write::OnnxAttribute;
use std::f64::consts::{FRAC_2_PI, SQRT_2};

/// Applies a function to values, which broadcast.
pub(super) fn elementwise(
    to: &mut Emitter,
    node: NodeId,
    function: ElementFunction,
    inputs: &[String],
) -> Result<String> {
    let op = match function {
        ElementFunction::Add => "Add",
        ElementFunction::Sub => "Sub",
        ElementFunction::Mul => "Mul",
        unary => return apply(to, node, unary, &inputs[0]),
    };
    let mut inputs = inputs.iter();
    let first = inputs.next().cloned().unwrap_or_default();
    Ok(inputs.fold(first, |sum, next| to.plain(op, &[&sum, next])))
}

/// Applies a function of one input.
pub(super) fn apply(to: &mut Emitter, node: NodeId, function: ElementFunction, x: &str) -> Result<String> {
    Ok(match function {
        ElementFunction::Neg => to.plain("Neg", &[x]),
        ElementFunction::Square => to.plain("Mul", &[x, x]),
        ElementFunction::Rsqrt => {
            let root = to.plain("Sqrt", &[x]);
            to.plain("Reciprocal", &[&root])
        }
        ElementFunction::Relu => to.plain("Relu", &[x]),
        ElementFunction::Relu6 => {
            let (low, high) = (to.number(0.0), to.number(6.0));
            to.plain("Clip", &[x, &low, &high])
        }
        ElementFunction::Gelu => gelu(to, x),
        ElementFunction::GeluTanh => gelu_tanh(to, x),
        ElementFunction::Silu => times_sigmoid(to, x, x),
        ElementFunction::QuickGelu => {
            let factor = to.number(1.702);
            let scaled = to.plain("Mul", &[x, &factor]);
            times_sigmoid(to, x, &scaled)
        }
        ElementFunction::Sigmoid => to.plain("Sigmoid", &[x]),
        ElementFunction::Tanh => to.plain("Tanh", &[x]),
        ElementFunction::HardSigmoid => hard_sigmoid(to, x),
        ElementFunction::HardSwish => {
            let gate = hard_sigmoid(to, x);
            to.plain("Mul", &[x, &gate])
        }
        ElementFunction::Add | ElementFunction::Sub | ElementFunction::Mul => x.to_string(),
        ElementFunction::Constant | ElementFunction::Mask | ElementFunction::Foreign(_) => {
            return Err(to.refused(node, &format!("found {:?}", function.name())));
        }
    })
}

/// `x · (1 + erf(x / √2)) / 2`. Programs recognise this order and fuse it.
fn gelu(to: &mut Emitter, x: &str) -> String {
    let (root, one, half) = (to.number(SQRT_2), to.number(1.0), to.number(0.5));
    let scaled = to.plain("Div", &[x, &root]);
    let error = to.plain("Erf", &[&scaled]);
    let sum = to.plain("Add", &[&error, &one]);
    let product = to.plain("Mul", &[x, &sum]);
    to.plain("Mul", &[&product, &half])
}

/// `x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2`.
fn gelu_tanh(to: &mut Emitter, x: &str) -> String {
    let (three, cubic, root) = (to.number(3.0), to.number(0.044_715), to.number(FRAC_2_PI.sqrt()));
    let (one, half) = (to.number(1.0), to.number(0.5));
    let cube = to.plain("Pow", &[x, &three]);
    let cube = to.plain("Mul", &[&cubic, &cube]);
    let sum = to.plain("Add", &[x, &cube]);
    let inner = to.plain("Mul", &[&root, &sum]);
    let tanh = to.plain("Tanh", &[&inner]);
    let outer = to.plain("Add", &[&one, &tanh]);
    let halved = to.plain("Mul", &[&half, x]);
    to.plain("Mul", &[&halved, &outer])
}

fn times_sigmoid(to: &mut Emitter, x: &str, of: &str) -> String {
    let gate = to.plain("Sigmoid", &[of]);
    to.plain("Mul", &[x, &gate])
}

/// `min(max(x / 6 + 1 / 2, 0), 1)`.
fn hard_sigmoid(to: &mut Emitter, x: &str) -> String {
    let attributes = vec![("alpha", OnnxAttribute::Float(1.0 / 6.0)), ("beta", OnnxAttribute::Float(0.5))];
    to.op("HardSigmoid", &[x], attributes)
}
