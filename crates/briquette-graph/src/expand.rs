//! Expands composites to primitives.

mod attention;
mod experts;
mod heads;
mod norms;
mod tokens;

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
        Composite::HeadNorm { heads, .. } => norms::head(to, inputs, *heads),
        Composite::GroupNorm { groups, .. } => norms::group(to, inputs, *groups),
        Composite::Attention(settings) => attention::attention(to, inputs, settings),
        Composite::SplitHeads { heads, parts } => return heads::split(to, inputs[0], *heads, *parts),
        Composite::SpaceToTokens => tokens::of_space(to, inputs[0]),
        Composite::PrependTokens => tokens::prepended(to, inputs),
        Composite::TakeToken(index) => tokens::taken(to, inputs[0], *index),
        Composite::Gate(function) => gate(to, *function, inputs[0], inputs[1]),
        Composite::Experts { routing, function } => experts::experts(to, inputs, *routing, *function),
        Composite::SeparateExperts { routing, function } => experts::separate(to, inputs, *routing, *function),
    }?;
    match output {
        Operand::Value(value) => Ok(vec![value]),
        Operand::Weight(_) => Err(Mismatch { operand: Some(output), message: "is no activation".into() }),
    }
}

fn n_inputs(composite: &Composite) -> std::ops::RangeInclusive<usize> {
    match composite {
        Composite::Linear | Composite::LayerNorm { .. } => 2..=3,
        Composite::Embedding | Composite::RmsNorm { .. } | Composite::HeadNorm { .. } | Composite::Gate(_) => 2..=2,
        Composite::SplitHeads { .. } | Composite::SpaceToTokens | Composite::TakeToken(_) => 1..=1,
        Composite::PrependTokens => 2..=8,
        Composite::SeparateExperts { .. } => 5..=usize::MAX,
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
