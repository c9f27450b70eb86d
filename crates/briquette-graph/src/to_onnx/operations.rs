//! Converts each operation of a graph.

use super::attention::attention;
use super::emitter::Emitter;
use super::experts::Mixture;
use super::functions::{apply, elementwise};
use super::grids;
use super::linear::{linear, product, table};
use super::norms;
use super::reshape::{expand, reshape};
use super::same_padding::{conv_pads, pad_same};
use super::spatial;
use crate::graph::{NodeId, Operand};
use crate::op::{Composite, Op, Primitive, Reduction};
use briquette_core::Result;
use briquette_formats::onnx_write::OnnxAttribute;

/// Adds the operators of a node.
pub(super) fn add(to: &mut Emitter, id: NodeId) -> Result<()> {
    let node = &to.symbolic.graph.nodes[id.0];
    to.enter(&node.name);
    let found = match &node.op {
        Op::Primitive(Primitive::Split { axis, sizes }) => {
            let x = to.operand(node.inputs[0]);
            to.split(&x, *axis, sizes)
        }
        Op::Composite(Composite::SplitHeads { heads, parts }) => split_heads(to, node.inputs[0], *heads, *parts),
        Op::Primitive(op) => vec![primitive(to, id, op, &node.inputs)?],
        Op::Composite(op) => vec![composite(to, id, op, &node.inputs)?],
    };
    node.outputs.iter().zip(found).for_each(|(value, name)| to.set(*value, name));
    Ok(())
}

fn names(to: &mut Emitter, inputs: &[Operand]) -> Vec<String> {
    inputs.iter().map(|input| to.operand(*input)).collect()
}

fn primitive(to: &mut Emitter, id: NodeId, op: &Primitive, inputs: &[Operand]) -> Result<String> {
    if let Primitive::Gather = op {
        return Ok(table(to, inputs));
    }
    let all = names(to, inputs);
    let Some(x) = all.first() else { return Err(to.refused(id, "found no input")) };
    Ok(match op {
        Primitive::Elementwise(function) => elementwise(to, id, *function, &all)?,
        Primitive::MatMul { transpose_b } => product(to, x, &all[1], *transpose_b, inputs),
        Primitive::Conv(settings) => {
            let pads_same = matches!(inputs[0], Operand::Value(value) if conv_pads(to, value));
            spatial::conv(to, &all, settings, pads_same)
        }
        Primitive::Reshape(_) => {
            let (from, target) = (to.dims(inputs[0]), to.symbolic.target(id).to_vec());
            reshape(to, id, x, &from, &target)?
        }
        Primitive::Expand(_) => {
            let (from, target) = (to.dims(inputs[0]), to.symbolic.target(id).to_vec());
            expand(to, id, x, &from, &target)?
        }
        Primitive::Transpose(permutation) => to.transpose(x, permutation),
        Primitive::Slice { axis, start, len } => slice(to, x, *axis, *start, *len),
        Primitive::Concat { axis } => to.concat(&all.iter().map(String::as_str).collect::<Vec<_>>(), *axis),
        Primitive::Reduce { axes, kind } => reduce(to, x, axes, *kind),
        Primitive::Scale(factor) => {
            let factor = to.number(*factor);
            to.plain("Mul", &[x, &factor])
        }
        Primitive::Pool(window) => spatial::pool(to, x, window),
        Primitive::AdaptivePool(space) => {
            let dims = to.dims(inputs[0]);
            spatial::adaptive_pool(to, id, x, &dims, space)?
        }
        Primitive::Resize(factor) => {
            let rank = to.dims(inputs[0]).len();
            spatial::resize(to, x, *factor, rank)
        }
        Primitive::Pad { before, after } => spatial::pad(to, x, before, after),
        Primitive::PadSame { size, stride } => pad_same(to, id, x, size, stride)?,
        Primitive::Softmax { axis } => to.op("Softmax", &[x], vec![("axis", OnnxAttribute::Int(*axis as i64))]),
        Primitive::FakeQuantize(grid) => match grids::rounded(to, x, *grid) {
            Some(rounded) => rounded,
            None => return Err(to.refused(id, "found a grid of other than 8 bits")),
        },
        Primitive::Gather | Primitive::Split { .. } => unreachable!("handled before"),
        Primitive::PerChannel { .. }
        | Primitive::Route(_)
        | Primitive::Number { .. }
        | Primitive::CumulativeSum { .. }
        | Primitive::TopIndices { .. }
        | Primitive::Spatial { .. }
        | Primitive::Recurrent(_)
        | Primitive::Unknown { .. } => {
            return Err(to.refused(id, &format!("found {:?}", op.name())));
        }
    })
}

fn composite(to: &mut Emitter, id: NodeId, op: &Composite, inputs: &[Operand]) -> Result<String> {
    match op {
        Composite::Linear => return linear(to, id, inputs),
        Composite::Embedding => return Ok(table(to, inputs)),
        Composite::Attention(settings) => return attention(to, id, inputs, settings),
        Composite::Experts { routing, function } => {
            return Mixture { routing: *routing, function: *function }.stacked(to, id, inputs);
        }
        Composite::SeparateExperts { routing, function } => {
            return Mixture { routing: *routing, function: *function }.separate(to, id, inputs);
        }
        _ => {}
    }
    let x = to.operand(inputs[0]);
    let dims = to.dims(inputs[0]);
    Ok(match op {
        Composite::LayerNorm { eps } => {
            let all = names(to, inputs);
            norms::layer(to, &all, *eps)
        }
        Composite::BatchNorm { eps } => {
            let all = names(to, inputs);
            norms::batch(to, &all, *eps)
        }
        Composite::GroupNorm { groups, eps } => {
            let all = names(to, inputs);
            norms::group(to, &all, *groups, dims[1].extent, dims.len(), *eps)
        }
        Composite::RmsNorm { eps, offset } => norms::root_mean_square(to, &x, inputs[1], *eps, *offset),
        Composite::HeadNorm { heads, eps, offset } => {
            let width = dims.last().map_or(0, |dim| dim.extent) / (*heads).max(1);
            norms::head(to, &x, inputs[1], [*heads, width], *eps, *offset)
        }
        Composite::SpaceToTokens => {
            let flat = to.reshape(&x, &[0, dims[1].extent as i64, -1]);
            to.transpose(&flat, &[0, 2, 1])
        }
        Composite::PrependTokens => prepended(to, &x, &inputs[1..]),
        Composite::TakeToken(index) => {
            let index = to.int(*index as i64);
            to.op("Gather", &[&x, &index], vec![("axis", OnnxAttribute::Int(1))])
        }
        Composite::Gate(function) => {
            let gate = apply(to, id, *function, &x)?;
            let up = to.operand(inputs[1]);
            to.plain("Mul", &[&gate, &up])
        }
        other => return Err(to.refused(id, &format!("found {:?}", other.name()))),
    })
}

fn slice(to: &mut Emitter, x: &str, axis: usize, start: usize, len: usize) -> String {
    let [start, end, axis] = [start, start + len, axis].map(|n| to.ints(&[n as i64]));
    to.plain("Slice", &[x, &start, &end, &axis])
}

fn reduce(to: &mut Emitter, x: &str, axes: &[usize], kind: Reduction) -> String {
    let axes: Vec<i64> = axes.iter().map(|axis| *axis as i64).collect();
    match kind {
        Reduction::Mean => to.op("ReduceMean", &[x], vec![("axes", OnnxAttribute::Ints(axes))]),
        Reduction::Max => to.op("ReduceMax", &[x], vec![("axes", OnnxAttribute::Ints(axes))]),
        Reduction::Sum => {
            let axes = to.ints(&axes);
            to.plain("ReduceSum", &[x, &axes])
        }
    }
}

/// Learned tokens `[1, n, width]`, repeated for every item, before the tokens `[batch, tokens, width]`.
fn prepended(to: &mut Emitter, x: &str, tokens: &[Operand]) -> String {
    let (shape, first) = (to.plain("Shape", &[x]), to.ints(&[0]));
    let batch = to.plain("Gather", &[&shape, &first]);
    let rest = to.ints(&[1, 1]);
    let shape = to.concat(&[&batch, &rest], 0);
    let mut parts = Vec::with_capacity(tokens.len() + 1);
    for &token in tokens {
        let token = to.operand(token);
        parts.push(to.plain("Expand", &[&token, &shape]));
    }
    parts.push(x.to_string());
    to.concat(&parts.iter().map(String::as_str).collect::<Vec<_>>(), 1)
}

/// `[batch, tokens, heads · parts · width]` to `parts` values `[batch, tokens, heads · width]`.
fn split_heads(to: &mut Emitter, x: Operand, heads: usize, parts: usize) -> Vec<String> {
    let all = to.dims(x).last().map_or(0, |dim| dim.extent);
    let (own, width) = (all / heads.max(1), all / (heads * parts).max(1));
    let x = to.operand(x);
    let cut = to.reshape(&x, &[0, 0, heads as i64, own as i64]);
    let cuts = to.split(&cut, 3, &vec![width; parts]);
    cuts.into_iter().map(|part| to.reshape(&part, &[0, 0, (heads * width) as i64])).collect()
}
