//! Patches as tokens, learned tokens, and single tokens.

use crate::expansion::{Expansion, Mismatch, mismatch};
use crate::graph::Operand;
use crate::op::Primitive;

/// `[batch, channels, height, width]` to `[batch, height · width, channels]`.
pub(super) fn of_space(to: &mut Expansion, x: Operand) -> Result<Operand, Mismatch> {
    let shape = to.shape(x).to_vec();
    let &[batch, channels, height, width] = shape.as_slice() else {
        return mismatch(x, format!("found {shape:?}, expected [batch, channels, height, width]"));
    };
    let flat = to.reshape(x, vec![batch, channels, height * width])?;
    to.transpose(flat, &[0, 2, 1])
}

/// Puts `[1, n, width]` tokens before the tokens of each item.
pub(super) fn prepended(to: &mut Expansion, inputs: &[Operand]) -> Result<Operand, Mismatch> {
    let shape = to.shape(inputs[0]).to_vec();
    if shape.len() != 3 {
        return mismatch(inputs[0], format!("found {shape:?}, expected [batch, tokens, width]"));
    }
    let mut parts = Vec::new();
    for &token in &inputs[1..] {
        let own = to.shape(token).to_vec();
        if own.len() != 3 || own[0] != 1 || own[2] != shape[2] {
            return mismatch(token, format!("expected [1, tokens, {}]", shape[2]));
        }
        parts.push(to.one(Primitive::Expand(vec![shape[0], own[1], own[2]]), &[token])?);
    }
    parts.push(inputs[0]);
    to.one(Primitive::Concat { axis: 1 }, &parts)
}

/// `[batch, tokens, width]` to `[batch, width]`.
pub(super) fn taken(to: &mut Expansion, x: Operand, index: usize) -> Result<Operand, Mismatch> {
    let shape = to.shape(x).to_vec();
    if shape.len() != 3 {
        return mismatch(x, format!("found {shape:?}, expected [batch, tokens, width]"));
    }
    let token = to.one(Primitive::Slice { axis: 1, start: index, len: 1 }, &[x])?;
    to.reshape(token, vec![shape[0], shape[2]])
}
