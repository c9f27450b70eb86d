//! Mixture of experts: every expert runs on every token, and the router's probabilities weigh the results.

use crate::expansion::{Expansion, Mismatch, mismatch};
use crate::graph::Operand;
use crate::op::{ElementFunction, Primitive, Reduction, Routing};

/// Expands `Σ_e p_e · down_e(function(gate_e x) · up_e x)`. Programs skip experts whose probability is 0.
pub(super) fn experts(
    to: &mut Expansion,
    inputs: &[Operand],
    routing: Routing,
    function: ElementFunction,
) -> Result<Operand, Mismatch> {
    let [x, logits, gate, up, down] = *inputs else { unreachable!("five inputs were counted") };
    let shape = to.shape(x).to_vec();
    let n_experts = to.shape(logits).last().copied().unwrap_or(0);
    if shape.len() != 3 || to.shape(logits).len() != 3 {
        return mismatch(x, format!("found {shape:?}, expected [batch, tokens, width]"));
    }
    for weights in [gate, up, down] {
        if to.shape(weights).len() != 3 || to.shape(weights)[0] != n_experts {
            return mismatch(weights, format!("expected 3 axes, the first {n_experts} experts"));
        }
    }
    let rows = shape[0] * shape[1];
    let tokens = to.reshape(x, vec![1, rows, shape[2]])?;
    let product = Primitive::MatMul { transpose_b: true };
    let gated = to.one(product.clone(), &[tokens, gate])?;
    let gated = to.one(Primitive::Elementwise(function), &[gated])?;
    let inner = to.one(product.clone(), &[tokens, up])?;
    let inner = to.one(Primitive::Elementwise(ElementFunction::Mul), &[gated, inner])?;
    let outer = to.one(product, &[inner, down])?;
    let shares = to.one(Primitive::Route(routing), &[logits])?;
    let shares = to.reshape(shares, vec![rows, n_experts])?;
    let shares = to.transpose(shares, &[1, 0])?;
    let shares = to.reshape(shares, vec![n_experts, rows, 1])?;
    let weighed = to.one(Primitive::Elementwise(ElementFunction::Mul), &[outer, shares])?;
    let sum = to.one(Primitive::Reduce { axes: vec![0], kind: Reduction::Sum }, &[weighed])?;
    to.reshape(sum, shape)
}

/// The same with a linear layer for each matrix.
pub(super) fn separate(
    to: &mut Expansion,
    inputs: &[Operand],
    routing: Routing,
    function: ElementFunction,
) -> Result<Operand, Mismatch> {
    let (x, logits, matrices) = (inputs[0], inputs[1], &inputs[2..]);
    let shape = to.shape(logits).to_vec();
    if shape.len() != 3 || shape[2] * 3 != matrices.len() {
        return mismatch(
            logits,
            format!("found {shape:?}, expected three axes, the last {} experts", matrices.len() / 3),
        );
    }
    let shares = to.one(Primitive::Route(routing), &[logits])?;
    let product = Primitive::MatMul { transpose_b: true };
    let mut terms = Vec::with_capacity(shape[2]);
    for (expert, matrices) in matrices.chunks_exact(3).enumerate() {
        let gated = to.one(product.clone(), &[x, matrices[0]])?;
        let gated = to.one(Primitive::Elementwise(function), &[gated])?;
        let inner = to.one(product.clone(), &[x, matrices[1]])?;
        let inner = to.one(Primitive::Elementwise(ElementFunction::Mul), &[gated, inner])?;
        let outer = to.one(product.clone(), &[inner, matrices[2]])?;
        let share = to.one(Primitive::Slice { axis: 2, start: expert, len: 1 }, &[shares])?;
        terms.push(to.one(Primitive::Elementwise(ElementFunction::Mul), &[outer, share])?);
    }
    to.one(Primitive::Elementwise(ElementFunction::Add), &terms)
}
