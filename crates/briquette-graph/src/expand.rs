//! Expands composites to primitives.

mod attention;
mod experts;
mod norms;

use crate::expansion::{Expansion, Mismatch};
use crate::graph::{Operand, ValueId};
use crate::op::{Composite, ElementFunction, Op, Primitive};
use briquette_core::OutputAxis;

/// Appends the primitives of an operation and returns its outputs.
pub(crate) fn expand(to: &mut Expansion, op: &Op, inputs: &[Operand]) -> Result<Vec<ValueId>, Mismatch> {
    let composite = match op {
        Op::Primitive(primitive) => return to.apply(primitive.clone(), inputs),
        Op::Composite(composite) => composite,
    };
    let allowed = n_inputs(composite);
    if !allowed.contains(&inputs.len()) {
        let message = format!("found {} inputs, expected {} to {}", inputs.len(), allowed.start(), allowed.end());
        return Err(Mismatch { operand: None, message });
    }
    let output = match composite {
        Composite::Linear => linear(to, inputs),
        Composite::Embedding => to.one(Primitive::Gather, inputs),
        Composite::LayerNorm { .. } => norms::layer(to, inputs),
        Composite::RmsNorm { .. } => norms::root_mean_square(to, inputs),
        Composite::BatchNorm { .. } => to.one(Primitive::PerChannel { axis: 1 }, inputs),
        Composite::GroupNorm { groups, .. } => norms::group(to, inputs, *groups),
        Composite::Attention(settings) => attention::attention(to, inputs, settings),
        Composite::Gate(function) => gate(to, *function, inputs[0], inputs[1]),
        Composite::Experts { top_k, function } => experts::experts(to, inputs, *top_k, *function),
    }?;
    match output {
        Operand::Value(value) => Ok(vec![value]),
        Operand::Weight(_) => Err(Mismatch { operand: Some(output), message: "is no activation".into() }),
    }
}

fn n_inputs(composite: &Composite) -> std::ops::RangeInclusive<usize> {
    match composite {
        Composite::Linear | Composite::LayerNorm { .. } => 2..=3,
        Composite::Embedding | Composite::RmsNorm { .. } | Composite::Gate(_) => 2..=2,
        Composite::BatchNorm { .. } | Composite::Experts { .. } => 5..=5,
        Composite::GroupNorm { .. } => 3..=3,
        Composite::Attention(_) => 3..=4,
    }
}

/// `x · Wᵀ + b`. A weight `[in, out]` is multiplied as it is stored.
fn linear(to: &mut Expansion, inputs: &[Operand]) -> Result<Operand, Mismatch> {
    let transpose_b = match inputs[1] {
        Operand::Weight(weight) => to.weights[weight.0].layout != OutputAxis::Last,
        Operand::Value(_) => true,
    };
    let product = to.one(Primitive::MatMul { transpose_b }, &inputs[..2])?;
    match inputs.get(2) {
        None => Ok(product),
        Some(&bias) => {
            let axis = to.shape(product).len() - 1;
            to.one(Primitive::PerChannel { axis }, &[product, bias])
        }
    }
}

fn gate(to: &mut Expansion, function: ElementFunction, gate: Operand, up: Operand) -> Result<Operand, Mismatch> {
    let gate = to.one(Primitive::Elementwise(function), &[gate])?;
    to.one(Primitive::Elementwise(ElementFunction::Mul), &[gate, up])
}
