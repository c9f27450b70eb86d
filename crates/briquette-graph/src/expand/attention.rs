//! Attention: heads, rotary positions, repeated keys and values, scores, and heads joined.

use super::heads::by_head;
use crate::expansion::{Expansion, Mismatch, mismatch};
use crate::graph::Operand;
use crate::op::{Attention, ElementFunction, Primitive};

/// Expands `softmax(cap(q · kᵀ · scale) + bias + mask) · v` for all heads. Products with constants are left out.
pub(super) fn attention(to: &mut Expansion, inputs: &[Operand], settings: &Attention) -> Result<Operand, Mismatch> {
    let (heads, kv_heads) = (settings.heads, settings.kv_heads);
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let message = format!("{kv_heads} heads of keys cannot serve {heads} heads of queries");
        return Err(Mismatch { operand: None, message });
    }
    let q = heads_first(to, inputs[0], heads)?;
    let k = heads_first(to, inputs[1], kv_heads)?;
    let v = heads_first(to, inputs[2], kv_heads)?;
    let (q, k) = match &settings.rotary {
        None => (q, k),
        Some(rotary) => (turned(to, q, rotary.width)?, turned(to, k, rotary.width)?),
    };
    let (k, v) = (repeated(to, k, heads)?, repeated(to, v, heads)?);
    let mut scores = to.one(Primitive::MatMul { transpose_b: true }, &[q, k])?;
    if settings.soft_cap.is_some() {
        scores = to.one(Primitive::Elementwise(ElementFunction::Tanh), &[scores])?;
    }
    if let Some(&bias) = inputs.get(3) {
        scores = to.one(Primitive::Elementwise(ElementFunction::Add), &[scores, bias])?;
    }
    if settings.causal || settings.window.is_some() {
        scores = to.one(Primitive::Elementwise(ElementFunction::Mask), &[scores])?;
    }
    let probabilities = to.one(Primitive::Softmax { axis: 3 }, &[scores])?;
    let mixed = to.one(Primitive::MatMul { transpose_b: false }, &[probabilities, v])?;
    let mixed = to.transpose(mixed, &[0, 2, 1, 3])?;
    let shape = to.shape(mixed).to_vec();
    to.reshape(mixed, vec![shape[0], shape[1], shape[2] * shape[3]])
}

/// `[batch, tokens, heads · width]` to `[batch, heads, tokens, width]`.
fn heads_first(to: &mut Expansion, x: Operand, heads: usize) -> Result<Operand, Mismatch> {
    let x = by_head(to, x, heads)?;
    to.transpose(x, &[0, 2, 1, 3])
}

/// Turns the first `width` elements of each head, or all.
fn turned(to: &mut Expansion, x: Operand, width: Option<usize>) -> Result<Operand, Mismatch> {
    let own = to.shape(x)[3];
    match width {
        Some(width) if width < own => {
            let parts = to.apply(Primitive::Split { axis: 3, sizes: vec![width, own - width] }, &[x])?;
            let first = rotated(to, parts[0].into())?;
            to.one(Primitive::Concat { axis: 3 }, &[first, parts[1].into()])
        }
        Some(width) if width > own => mismatch(x, format!("found heads of width {own}, expected at least {width}")),
        _ => rotated(to, x),
    }
}

/// `x · cos + (-x₂, x₁) · sin`, where `x₁` and `x₂` are the halves of each head.
fn rotated(to: &mut Expansion, x: Operand) -> Result<Operand, Mismatch> {
    let width = to.shape(x)[3];
    if !width.is_multiple_of(2) {
        return mismatch(x, format!("found heads of width {width}, expected an even width"));
    }
    let halves = to.apply(Primitive::Split { axis: 3, sizes: vec![width / 2; 2] }, &[x])?;
    let negative = to.one(Primitive::Elementwise(ElementFunction::Neg), &[halves[1].into()])?;
    let turned = to.one(Primitive::Concat { axis: 3 }, &[negative, halves[0].into()])?;
    let cosine = to.one(Primitive::Elementwise(ElementFunction::Constant), &[x])?;
    let sine = to.one(Primitive::Elementwise(ElementFunction::Constant), &[turned])?;
    to.one(Primitive::Elementwise(ElementFunction::Add), &[cosine, sine])
}

/// Repeats each head of keys or values for the heads of queries that share it.
fn repeated(to: &mut Expansion, x: Operand, heads: usize) -> Result<Operand, Mismatch> {
    let shape = to.shape(x).to_vec();
    let (n, own) = (heads / shape[1], shape[1]);
    if n == 1 {
        return Ok(x);
    }
    let x = to.reshape(x, vec![shape[0], own, 1, shape[2], shape[3]])?;
    let x = to.one(Primitive::Expand(vec![shape[0], own, n, shape[2], shape[3]]), &[x])?;
    to.reshape(x, vec![shape[0], heads, shape[2], shape[3]])
}
