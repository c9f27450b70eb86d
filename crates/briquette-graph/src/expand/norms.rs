//! Norms: statistics over axes, then scales and shifts along one axis.

use super::heads::by_head;
use crate::expansion::{Expansion, Mismatch, mismatch};
use crate::graph::Operand;
use crate::op::{ElementFunction, Primitive, Reduction};

/// `(x - mean) / sqrt(var + eps) · weight + bias` over the last axis.
pub(super) fn layer(to: &mut Expansion, inputs: &[Operand]) -> Result<Operand, Mismatch> {
    let axis = last_axis(to, inputs[0])?;
    let normed = standardized(to, inputs[0], vec![axis])?;
    scaled(to, normed, axis, &inputs[1..])
}

/// `x / sqrt(mean(x²) + eps) · (weight + offset)` over the last axis.
pub(super) fn root_mean_square(to: &mut Expansion, inputs: &[Operand]) -> Result<Operand, Mismatch> {
    let axis = last_axis(to, inputs[0])?;
    let normed = divided_by_root(to, inputs[0], vec![axis])?;
    scaled(to, normed, axis, &inputs[1..])
}

/// The same over the width of each head.
pub(super) fn head(to: &mut Expansion, inputs: &[Operand], heads: usize) -> Result<Operand, Mismatch> {
    let shape = to.shape(inputs[0]).to_vec();
    let cut = by_head(to, inputs[0], heads)?;
    let normed = root_mean_square(to, &[&[cut], &inputs[1..]].concat())?;
    to.reshape(normed, shape)
}

/// Layer norm over each group of channels and all of space.
pub(super) fn group(to: &mut Expansion, inputs: &[Operand], groups: usize) -> Result<Operand, Mismatch> {
    let shape = to.shape(inputs[0]).to_vec();
    if shape.len() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) {
        return mismatch(inputs[0], format!("found {shape:?}, expected a second axis that {groups} groups divide"));
    }
    let mut grouped = vec![shape[0], groups, shape[1] / groups];
    grouped.extend(&shape[2..]);
    let axes = (2..grouped.len()).collect();
    let x = to.reshape(inputs[0], grouped)?;
    let normed = standardized(to, x, axes)?;
    let normed = to.reshape(normed, shape)?;
    scaled(to, normed, 1, &inputs[1..])
}

fn last_axis(to: &Expansion, x: Operand) -> Result<usize, Mismatch> {
    match to.shape(x).len().checked_sub(1) {
        Some(axis) => Ok(axis),
        None => mismatch(x, "expected one axis or more".into()),
    }
}

fn standardized(to: &mut Expansion, x: Operand, axes: Vec<usize>) -> Result<Operand, Mismatch> {
    let mean = to.one(Primitive::Reduce { axes: axes.clone(), kind: Reduction::Mean }, &[x])?;
    let centred = to.one(Primitive::Elementwise(ElementFunction::Sub), &[x, mean])?;
    divided_by_root(to, centred, axes)
}

fn divided_by_root(to: &mut Expansion, x: Operand, axes: Vec<usize>) -> Result<Operand, Mismatch> {
    let squares = to.one(Primitive::Elementwise(ElementFunction::Square), &[x])?;
    let mean = to.one(Primitive::Reduce { axes, kind: Reduction::Mean }, &[squares])?;
    let scale = to.one(Primitive::Elementwise(ElementFunction::Rsqrt), &[mean])?;
    to.one(Primitive::Elementwise(ElementFunction::Mul), &[x, scale])
}

fn scaled(to: &mut Expansion, x: Operand, axis: usize, vectors: &[Operand]) -> Result<Operand, Mismatch> {
    to.one(Primitive::PerChannel { axis }, &[&[x], vectors].concat())
}
