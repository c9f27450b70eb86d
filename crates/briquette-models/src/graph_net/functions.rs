//! Functions of each element.

use super::value::{AnyTensor, BinaryFunction, with_tensor};
use crate::bert::HiddenActivation;
use briquette_graph::op::ElementFunction;
use burn::tensor::activation::{gelu_approximate, hard_swish, relu, sigmoid, silu, tanh};

/// Returns the function as fused kernels know it.
pub(super) fn hidden_activation(function: ElementFunction) -> Option<HiddenActivation> {
    match function {
        ElementFunction::Gelu => Some(HiddenActivation::Gelu),
        ElementFunction::Relu => Some(HiddenActivation::Relu),
        _ => None,
    }
}

/// Applies a function of one input.
pub(super) fn apply(function: ElementFunction, x: AnyTensor) -> AnyTensor {
    with_tensor!(x, x => match function {
        ElementFunction::Gelu => briquette_ops::fused::gelu(x),
        ElementFunction::GeluTanh => gelu_approximate(x),
        ElementFunction::Relu => relu(x),
        ElementFunction::Relu6 => x.clamp(0.0, 6.0),
        ElementFunction::Silu => silu(x),
        ElementFunction::Sigmoid => sigmoid(x),
        ElementFunction::Tanh => tanh(x),
        ElementFunction::HardSwish => hard_swish(x),
        ElementFunction::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        ElementFunction::QuickGelu => x.clone() * sigmoid(x * 1.702),
        ElementFunction::Neg => -x,
        ElementFunction::Square => x.powi_scalar(2),
        ElementFunction::Rsqrt => x.sqrt().recip(),
        other => panic!("{} is no function of one input", other.name()),
    }.into())
}

/// Applies a function to values, which broadcast.
pub(super) fn elementwise(function: ElementFunction, inputs: Vec<AnyTensor>) -> AnyTensor {
    let op = match function {
        ElementFunction::Add => BinaryFunction::Add,
        ElementFunction::Sub => BinaryFunction::Sub,
        ElementFunction::Mul => BinaryFunction::Mul,
        unary => return apply(unary, inputs.into_iter().next().expect("an input")),
    };
    inputs.into_iter().reduce(|a, b| a.zip(b, op)).expect("an input")
}
