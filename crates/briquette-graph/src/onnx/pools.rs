//! Reductions, pools and softmax.

use super::attributes::{axis, int, ints, text};
use super::importer::{Importer, MAX_HELD};
use super::inputs::NodeInputs;
use super::item::{Item, known};
use super::layout::reshaped;
use super::ranges::{mirrored, window};
use crate::graph::{Operand, ValueId};
use crate::op::{ElementFunction, PoolWindow, Primitive, Reduction, same_zeros};
use briquette_formats::onnx::Constant;

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
            return Some(vec![pooled_item(to, given.get(0)?, window)?]);
        }
    }
    let axes = (0..n_space).map(|at| pooled(given, shape[at + 2], at, n_space)).collect::<Option<Vec<PooledAxis>>>()?;
    if let Some(kind) = kind
        && to.runs
    {
        return Some(vec![uneven(to, given, kind, &axes)?]);
    }
    let space = axes.iter().map(|axis| axis.n).collect();
    Some(vec![Item::Value(to.emit(Primitive::Spatial { name: name.into(), space }, &[x])?)])
}

fn one_pool(to: &mut Importer, item: &Item, window: PoolWindow) -> Option<Item> {
    let x = to.operand(item)?;
    Some(Item::Value(to.emit(Primitive::Pool(window), &[x])?))
}

/// The windows of a pool along one axis.
struct PooledAxis {
    extent: usize,
    size: usize,
    stride: usize,
    dilation: usize,
    /// Places before and after the axis that the file gives to windows.
    pads: [usize; 2],
    /// The number of windows.
    n: usize,
}

impl PooledAxis {
    /// Places before and after the axis that windows reach.
    fn reached(&self) -> Option<[usize; 2]> {
        let end = (self.n.checked_sub(1)?).checked_mul(self.stride)?.checked_add(self.size)?;
        Some([self.pads[0], end.saturating_sub(self.extent + self.pads[0])])
    }

    /// The share of each window that counts for a mean: places of the axis, and the file's own zeros if they count.
    fn shares(&self, counts_zeros: bool) -> Vec<f64> {
        let [first, last] = match counts_zeros {
            true => [0, self.pads[0] + self.extent + self.pads[1]],
            false => [self.pads[0], self.pads[0] + self.extent],
        };
        let n = |at: usize| (at * self.stride + self.size).min(last).saturating_sub((at * self.stride).max(first));
        (0..self.n).map(|at| n(at) as f64 / self.size as f64).collect()
    }
}

/// Imports a pool whose windows reach over the ends of axes: a pool of a larger image.
///
/// For a maximum, the first and last elements are repeated: each window that reaches over an end has the element there. For a mean,
/// zeros are added, and each window is divided by its share that counts.
fn uneven(to: &mut Importer, given: &NodeInputs, kind: Reduction, axes: &[PooledAxis]) -> Option<Item> {
    let fits = |axis: &PooledAxis| {
        axis.dilation == 1 && (1..=MAX_HELD).contains(&axis.n) && axis.pads.iter().all(|n| *n < axis.size)
    };
    axes.iter().all(fits).then_some(())?;
    let reached: Vec<[usize; 2]> = axes.iter().map(PooledAxis::reached).collect::<Option<_>>()?;
    let at_end = |end: usize| [0, 0].into_iter().chain(reached.iter().map(|pads| pads[end])).collect::<Vec<usize>>();
    let [before, after] = [0, 1].map(at_end);
    let item = match kind {
        Reduction::Max => mirrored(to, given.get(0)?.clone(), "edge", &before, &after)?,
        _ => {
            let x = to.operand(given.get(0)?)?;
            Item::Value(to.emit(Primitive::Pad { before, after }, &[x])?)
        }
    };
    let of = |value: fn(&PooledAxis) -> usize| axes.iter().map(value).collect::<Vec<usize>>();
    let padding = vec![0; axes.len()];
    let window = PoolWindow { size: of(|axis| axis.size), stride: of(|axis| axis.stride), padding, kind };
    let mut found = pooled_item(to, &item, window)?;
    let counts_zeros = int(given.node, "count_include_pad", 0) != 0;
    for (at, axis) in axes.iter().enumerate().filter(|_| kind == Reduction::Mean) {
        let shares = axis.shares(counts_zeros);
        if shares.iter().all(|share| *share == 1.0) {
            continue;
        }
        let mut shape = vec![1; axes.len() + 2];
        shape[at + 2] = axis.n;
        let factors = shares.iter().map(|share| share.recip()).collect();
        let factors = to.operand(&known(Constant { shape, is_integer: false, values: factors }))?;
        let x = to.operand(&found)?;
        found = Item::Value(to.emit(Primitive::Elementwise(ElementFunction::Mul), &[x, factors])?);
    }
    Some(found)
}

/// Adds a pool. Where it runs, it has two axes.
fn pooled_item(to: &mut Importer, item: &Item, mut window: PoolWindow) -> Option<Item> {
    let shape = to.shape(item)?;
    let &[batch, channels, length] = shape.as_slice() else { return one_pool(to, item, window) };
    if !to.runs {
        return one_pool(to, item, window);
    }
    window.size.insert(0, 1);
    window.stride.insert(0, 1);
    window.padding.insert(0, 0);
    let image = reshaped(to, item, vec![batch, channels, 1, length])?;
    let found = one_pool(to, &image, window)?;
    let length = *to.shape(&found)?.last()?;
    reshaped(to, &found, vec![batch, channels, length])
}

/// Returns the windows of a pool along one axis.
fn pooled(given: &NodeInputs, extent: usize, at: usize, n_space: usize) -> Option<PooledAxis> {
    let list = |name: &str, n: usize, default: usize| super::attributes::extents(given.node, name, n, default);
    let size = usize::try_from(*ints(given.node, "kernel_shape")?.get(at)?).ok()?;
    let (stride, dilation) = (list("strides", n_space, 1)?[at], list("dilations", n_space, 1)?[at]);
    let reach = size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
    let pads = list("pads", 2 * n_space, 0)?;
    let pads = match text(given.node, "auto_pad", "NOTSET") {
        "NOTSET" => [pads[at], pads[at + n_space]],
        "VALID" => [0, 0],
        same => {
            let [less, more] = same_zeros(extent, reach, stride)?;
            if same == "SAME_LOWER" { [more, less] } else { [less, more] }
        }
    };
    let rest = extent.checked_add(pads[0])?.checked_add(pads[1])?.checked_sub(reach)?;
    let mut n = rest.checked_div(stride)?.checked_add(1)?;
    if int(given.node, "ceil_mode", 0) != 0 {
        n = rest.div_ceil(stride).checked_add(1)?;
        // A window must begin inside of the image or its first zeros.
        n -= usize::from((n - 1).checked_mul(stride)? >= extent + pads[0]);
    }
    Some(PooledAxis { extent, size, stride, dilation, pads, n })
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

/// Imports a softmax. Before opset 13, it is over all axes from the given one on.
pub(super) fn softmax(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let is_old = to.opset < 13;
    let axis = given.axis(to, if is_old { 1 } else { -1 })?;
    let shape = to.shape(given.get(0)?)?;
    let (mut item, mut over) = (given.get(0)?.clone(), axis);
    if is_old && axis + 1 < shape.len() {
        let (outer, inner) = shape.split_at(axis);
        item = reshaped(to, &item, vec![outer.iter().product(), inner.iter().product()])?;
        over = 1;
    }
    let x = to.operand(&item)?;
    let mut found = to.emit(Primitive::Softmax { axis: over }, &[x])?;
    if given.node.op_type == "LogSoftmax" {
        found = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Log")), &[found.into()])?;
    }
    Some(vec![reshaped(to, &Item::Value(found), shape)?])
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
