//! Reductions, pools, resizing and softmax.

use super::attributes::{axis, int, ints, text};
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use super::layout::reshaped;
use super::ranges::window;
use crate::graph::{Operand, ValueId};
use crate::op::{ElementFunction, PoolWindow, Primitive, Reduction};

/// Imports a pool. A window that ours cannot describe keeps batch and channels.
pub(super) fn pool(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    (given.node.outputs.len() == 1).then_some(())?;
    let shape = to.shape(given.get(0)?)?;
    let n_space = shape.len().checked_sub(2)?;
    let x = to.operand(given.get(0)?)?;
    let name = given.node.op_type.as_str();
    let kind = match name {
        "MaxPool" => Some(Reduction::Max),
        "AveragePool" => Some(Reduction::Mean),
        _ => None,
    };
    if let (Some(kind), Some([size, stride, padding])) = (kind, window(given, n_space)) {
        let counts_zeros = int(given.node, "count_include_pad", 0) != 0 || padding.iter().all(|&n| n == 0);
        if kind == Reduction::Max || counts_zeros {
            let window = PoolWindow { size, stride, padding, kind };
            return Some(vec![Item::Value(to.emit(Primitive::Pool(window), &[x])?)]);
        }
    }
    let space: Vec<usize> = (0..n_space).map(|at| pooled(given, shape[at + 2], at, n_space)).collect::<Option<_>>()?;
    Some(vec![Item::Value(to.emit(Primitive::Spatial { name: name.into(), space }, &[x])?)])
}

/// The outputs of a pool along one axis.
fn pooled(given: &NodeInputs, extent: usize, at: usize, n_space: usize) -> Option<usize> {
    let list = |name: &str, n: usize, default: usize| super::attributes::extents(given.node, name, n, default);
    let size = usize::try_from(*ints(given.node, "kernel_shape")?.get(at)?).ok()?;
    let (stride, dilation) = (list("strides", n_space, 1)?[at], list("dilations", n_space, 1)?[at]);
    let pads = list("pads", 2 * n_space, 0)?;
    let reach = size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    match text(given.node, "auto_pad", "NOTSET") {
        "NOTSET" => {}
        "VALID" => return extent.checked_sub(reach)?.checked_div(stride)?.checked_add(1),
        _ => return extent.checked_add(stride)?.checked_sub(1)?.checked_div(stride),
    }
    let rest = extent.checked_add(pads[at])?.checked_add(pads[at + n_space])?.checked_sub(reach)?;
    if int(given.node, "ceil_mode", 0) == 0 {
        return rest.checked_div(stride)?.checked_add(1);
    }
    let n = rest.checked_add(stride)?.checked_sub(1)?.checked_div(stride)?.checked_add(1)?;
    // A window must begin inside of the image or its first zeros.
    let starts_inside = (n - 1).checked_mul(stride)? < extent + pads[at];
    Some(if starts_inside { n } else { n - 1 })
}

/// Imports a pool over all of space.
pub(super) fn global_pool(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let rank = to.shape(given.get(0)?)?.len();
    let x = to.operand(given.get(0)?)?;
    let op = match given.node.op_type.as_str() {
        "GlobalMaxPool" => Primitive::Reduce { axes: (2..rank).collect(), kind: Reduction::Max },
        _ => Primitive::AdaptivePool(vec![1; rank.checked_sub(2)?]),
    };
    Some(vec![Item::Value(to.emit(op, &[x])?)])
}

/// Imports a resize of space. Equal integer factors of nearest neighbours are ours.
pub(super) fn resize(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let shape = to.shape(given.get(0)?)?;
    let is_upsample = given.node.op_type == "Upsample";
    let position = if is_upsample { 1 } else { 2 };
    let scales = given.get(position).and_then(|item| to.values(item)).map(|scales| scales.values);
    let scales = scales.filter(|scales| scales.len() == shape.len());
    let sizes = given.integers(to, 3).filter(|sizes| sizes.len() == shape.len());
    let target: Vec<usize> = match (sizes, &scales) {
        (Some(sizes), _) => sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?,
        (None, Some(scales)) => {
            shape.iter().zip(scales).map(|(&extent, scale)| (extent as f64 * scale) as usize).collect()
        }
        _ => to.declared_shape(given.node.outputs.first()?)?,
    };
    (target.len() == shape.len() && target.get(..2)? == shape.get(..2)?).then_some(())?;
    let factor = target.get(2)?.checked_div(shape[2])?;
    let is_nearest = text(given.node, "mode", "nearest") == "nearest";
    let is_factor = factor > 0 && (2..shape.len()).all(|axis| shape[axis].checked_mul(factor) == Some(target[axis]));
    let op = match is_nearest && is_factor {
        true => Primitive::Resize(factor),
        false => Primitive::Spatial { name: "Resize".into(), space: target[2..].to_vec() },
    };
    let x = to.operand(given.get(0)?)?;
    Some(vec![Item::Value(to.emit(op, &[x])?)])
}

/// Imports a softmax. Before opset 13, it is over all axes from the given one on.
pub(super) fn softmax(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let is_old = to.opset < 13;
    let axis = given.axis(to, if is_old { 1 } else { -1 })?;
    let rank = to.shape(given.get(0)?)?.len();
    (!is_old || axis + 1 == rank).then_some(())?;
    let x = to.operand(given.get(0)?)?;
    let mut found = to.emit(Primitive::Softmax { axis }, &[x])?;
    if given.node.op_type == "LogSoftmax" {
        found = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Log")), &[found.into()])?;
    }
    Some(vec![Item::Value(found)])
}

/// Imports a reduction. Kinds that ours lack are reductions between functions of elements.
pub(super) fn reduce(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let item = given.get(0)?;
    let shape = to.shape(item)?;
    let axes = match (ints(given.node, "axes"), given.has(1)) {
        (Some(axes), _) => axes.to_vec(),
        (None, true) => given.integers(to, 1)?,
        (None, false) => Vec::new(),
    };
    if axes.is_empty() && int(given.node, "noop_with_empty_axes", 0) != 0 {
        return Some(vec![item.clone()]);
    }
    let axes: Vec<usize> = match axes.is_empty() {
        true => (0..shape.len()).collect(),
        false => axes.iter().map(|&value| axis(value, shape.len())).collect::<Option<_>>()?,
    };
    let x = to.operand(item)?;
    let reduced = Item::Value(reduced(to, given.node.op_type.as_str(), x, axes.clone())?);
    if int(given.node, "keepdims", 1) != 0 {
        return Some(vec![reduced]);
    }
    let rest = (0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
    Some(vec![reshaped(to, &reduced, rest)?])
}

fn reduced(to: &mut Importer, name: &str, x: Operand, axes: Vec<usize>) -> Option<ValueId> {
    use ElementFunction::{Foreign, Neg, Square};
    let (before, kind, after) = match name {
        "ReduceMean" => (None, Reduction::Mean, None),
        "ReduceSum" => (None, Reduction::Sum, None),
        "ReduceMax" => (None, Reduction::Max, None),
        "ReduceMin" => (Some(Neg), Reduction::Max, Some(Neg)),
        "ReduceSumSquare" => (Some(Square), Reduction::Sum, None),
        "ReduceL1" => (Some(Foreign("Abs")), Reduction::Sum, None),
        "ReduceL2" => (Some(Square), Reduction::Sum, Some(Foreign("Sqrt"))),
        "ReduceLogSum" => (None, Reduction::Sum, Some(Foreign("Log"))),
        "ReduceLogSumExp" => (Some(Foreign("Exp")), Reduction::Sum, Some(Foreign("Log"))),
        _ => return None,
    };
    let x = match before {
        Some(function) => to.emit(Primitive::Elementwise(function), &[x])?.into(),
        None => x,
    };
    let found = to.emit(Primitive::Reduce { axes, kind }, &[x])?;
    match after {
        Some(function) => to.emit(Primitive::Elementwise(function), &[found.into()]),
        None => Some(found),
    }
}
