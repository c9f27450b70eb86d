//! Attention as products and a softmax.

use super::dims::SymbolicDim;
use super::emitter::Emitter;
use super::masks;
use super::rotary;
use crate::graph::{NodeId, Operand};
use crate::op::Attention;
use briquette_core::Result;
use briquette_formats::onnx_write::OnnxAttribute;

/// `softmax(cap(q · kᵀ · scale) + bias + mask) · v`, heads joined: `[q, k, v]` or `[q, k, v, bias]`.
pub(super) fn attention(to: &mut Emitter, node: NodeId, inputs: &[Operand], settings: &Attention) -> Result<String> {
    let width = head_width(to, node, inputs[0], settings.heads)?;
    let (heads, kv_heads) = (settings.heads, settings.kv_heads);
    let names: Vec<String> = inputs.iter().map(|input| to.operand(*input)).collect();
    let mut q = by_head(to, &names[0], heads, width);
    let mut k = by_head(to, &names[1], kv_heads, width);
    let mut v = by_head(to, &names[2], kv_heads, width);
    if let Some(rotary) = &settings.rotary {
        q = rotary::rotated(to, &q, rotary, width);
        k = rotary::rotated(to, &k, rotary, width);
    }
    if heads != kv_heads {
        [k, v] = [k, v].map(|x| repeated(to, &x, [kv_heads, heads], width));
    }
    let k = to.transpose(&k, &[0, 1, 3, 2]);
    let mut scores = to.plain("MatMul", &[&q, &k]);
    let scale = settings.scale.unwrap_or(1.0 / (width as f64).sqrt());
    scores = scaled(to, &scores, scale);
    if let Some(cap) = settings.soft_cap {
        scores = scaled(to, &scores, 1.0 / cap);
        scores = to.plain("Tanh", &[&scores]);
        scores = scaled(to, &scores, cap);
    }
    if let Some(bias) = names.get(3) {
        scores = to.plain("Add", &[&scores, bias]);
    }
    let reads_text = to.dims(inputs[0]).get(1).copied().is_some_and(SymbolicDim::counts_tokens);
    if let Some(mask) = masks::of(to, node, settings, reads_text)? {
        scores = to.plain("Add", &[&scores, &mask]);
    }
    let shares = to.op("Softmax", &[&scores], vec![("axis", OnnxAttribute::Int(-1))]);
    let mixed = to.plain("MatMul", &[&shares, &v]);
    let mixed = to.transpose(&mixed, &[0, 2, 1, 3]);
    Ok(to.reshape(&mixed, &[0, 0, (heads * width) as i64]))
}

fn head_width(to: &Emitter, node: NodeId, q: Operand, heads: usize) -> Result<usize> {
    match to.dims(q).as_slice() {
        [_, _, width] if !width.is_dynamic() && heads > 0 => Ok(width.extent / heads),
        _ => Err(to.refused(node, "found queries that are not [batch, tokens, heads · width]")),
    }
}

/// `[batch, tokens, heads · width]` to `[batch, heads, tokens, width]`.
fn by_head(to: &mut Emitter, x: &str, heads: usize, width: usize) -> String {
    let cut = to.reshape(x, &[0, 0, heads as i64, width as i64]);
    to.transpose(&cut, &[0, 2, 1, 3])
}

/// Repeats each head of keys or values for the heads of queries that share it.
fn repeated(to: &mut Emitter, x: &str, [own, heads]: [usize; 2], width: usize) -> String {
    let x = to.unsqueeze(x, &[2]);
    let times = to.ints(&[1, 1, (heads / own) as i64, 1, 1]);
    let x = to.plain("Expand", &[&x, &times]);
    to.reshape(&x, &[0, heads as i64, -1, width as i64])
}

fn scaled(to: &mut Emitter, x: &str, factor: f64) -> String {
    if factor == 1.0 {
        return x.to_string();
    }
    let factor = to.number(factor);
    to.plain("Mul", &[x, &factor])
}
