//! Operators that take parts of axes: slices, splits, lookups and padding.

use super::attributes::{axis, extents, float, int, ints, text};
use super::importer::{Importer, MAX_HELD};
use super::inputs::NodeInputs;
use super::item::{Item, integers, known};
use super::layout::reshaped;
use crate::graph::{Operand, ValueId};
use crate::op::{Composite, Primitive};
use briquette_formats::onnx::Constant;

/// One range of an axis, with its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AxisRange {
    pub(super) axis: usize,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) step: i64,
}

/// Returns the ranges of a `Slice`, by ONNX's rules: ends beyond an axis are cut, negative ones count from its end.
pub(super) fn slice_ranges(to: &Importer, given: &NodeInputs, shape: &[usize]) -> Option<Vec<AxisRange>> {
    let parameter = |name: &str, position: usize| match ints(given.node, name) {
        Some(values) => Some(values.to_vec()),
        None if given.has(position) => given.integers(to, position),
        None => Some(Vec::new()),
    };
    let (starts, ends) = (parameter("starts", 1)?, parameter("ends", 2)?);
    let (axes, steps) = (parameter("axes", 3)?, parameter("steps", 4)?);
    (starts.len() == ends.len()).then_some(())?;
    let range = |at: usize| {
        let axis = match axes.get(at) {
            Some(&value) => axis(value, shape.len())?,
            None => Some(at).filter(|axis| axes.is_empty() && *axis < shape.len())?,
        };
        axis_range(axis, shape[axis], (starts[at], ends[at], steps.get(at).copied().unwrap_or(1)))
    };
    (0..starts.len()).map(range).collect()
}

fn axis_range(axis: usize, extent: usize, (start, end, step): (i64, i64, i64)) -> Option<AxisRange> {
    let extent = i64::try_from(extent).ok()?;
    let from_end = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
    let (start, end) = match step {
        0 => return None,
        1.. => (from_end(start).clamp(0, extent), from_end(end).clamp(0, extent)),
        _ => (from_end(start).clamp(0, extent - 1), from_end(end).clamp(-1, extent - 1)),
    };
    let distance = if step > 0 { end.checked_sub(start)? } else { start.checked_sub(end)? };
    let len = usize::try_from(distance.max(0)).ok()?.div_ceil(usize::try_from(step.unsigned_abs()).ok()?);
    Some(AxisRange { axis, start: usize::try_from(start).ok()?, len, step })
}

/// Imports a slice. A step that divides the axis is a factor of a reshape.
pub(super) fn slice(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let mut item = given.get(0)?.clone();
    let shape = to.shape(&item)?;
    for AxisRange { axis, start, len, step } in slice_ranges(to, given, &shape)? {
        let own = to.shape(&item)?;
        let extent = own[axis];
        if (start, len, step) == (0, extent, 1) {
            continue;
        }
        if step == 1 {
            let x = to.operand(&item)?;
            item = Item::Value(to.emit(Primitive::Slice { axis, start, len }, &[x])?);
            continue;
        }
        let factor = usize::try_from(step).unwrap_or_default();
        if factor == 0 || !extent.is_multiple_of(factor) || start >= factor || len != extent / factor {
            (len <= MAX_HELD).then_some(())?;
            let start = i64::try_from(start).ok()?;
            let places: Vec<i64> = (0..i64::try_from(len).ok()?).map(|at| start + at * step).collect();
            item = taken(to, &item, axis, &places)?;
            continue;
        }
        let step = factor;
        let mut cut = own.clone();
        cut[axis] = len;
        cut.insert(axis + 1, step);
        let by_step = reshaped(to, &item, cut)?;
        let x = to.operand(&by_step)?;
        let taken = Item::Value(to.emit(Primitive::Slice { axis: axis + 1, start, len: 1 }, &[x])?);
        let mut joined = own;
        joined[axis] = len;
        item = reshaped(to, &taken, joined)?;
    }
    Some(vec![item])
}

/// Takes elements of an axis by their indices.
pub(super) fn taken(to: &mut Importer, item: &Item, axis: usize, places: &[i64]) -> Option<Item> {
    let values = places.iter().map(|&place| place as f64).collect();
    let indices = known(Constant { shape: vec![places.len()], is_integer: true, values });
    let (x, indices) = (to.operand(item)?, to.operand(&indices)?);
    Some(Item::Value(looked_up(to, x, indices, axis)?))
}

/// Imports a sum up to each element.
pub(super) fn cumulative_sum(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let is_plain = int(given.node, "exclusive", 0) == 0 && int(given.node, "reverse", 0) == 0;
    let rank = to.shape(given.get(0)?)?.len();
    let axis = axis(*given.integers(to, 1)?.first()?, rank).filter(|_| is_plain)?;
    let x = to.operand(given.get(0)?)?;
    Some(vec![Item::Value(to.emit(Primitive::CumulativeSum { axis }, &[x])?)])
}

/// Imports a split by sizes, or into equal parts of which the last may be smaller.
pub(super) fn split(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let axis = given.axis(to, 0)?;
    let extent = to.shape(given.get(0)?)?[axis];
    let n = given.node.outputs.len();
    let sizes: Vec<usize> = match ints(given.node, "split").map(<[i64]>::to_vec).or_else(|| given.integers(to, 1)) {
        Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?,
        None if given.has(1) => return None,
        None => {
            let size = extent.div_ceil(n);
            (0..n).map(|at| size.min(extent.saturating_sub(at * size))).collect()
        }
    };
    (sizes.len() == n).then_some(())?;
    let x = to.operand(given.get(0)?)?;
    Some(to.emit_all(Primitive::Split { axis, sizes }, &[x])?.into_iter().map(Item::Value).collect())
}

/// Imports a lookup. One known index is a slice without its axis; rows of a matrix of the file are an embedding.
pub(super) fn gather(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (data, indices) = (given.get(0)?, given.get(1)?);
    let axis = given.axis(to, 0)?;
    let shape = to.shape(data)?;
    if let Some(constant) = to.known(indices)
        && let Some(found) = by_range(to, data, axis, &constant.shape, &integers(&constant))
    {
        return Some(vec![found]);
    }
    let is_table = matches!(data, Item::Tensor(_)) && axis == 0 && shape.len() == 2;
    let indices = to.operand(indices)?;
    let x = to.operand(data)?;
    if is_table {
        return Some(vec![Item::Value(to.emit(Composite::Embedding, &[x, indices])?)]);
    }
    Some(vec![Item::Value(looked_up(to, x, indices, axis)?)])
}

/// Adds a lookup along an axis. The axis comes first, and the axes of the indices go where it was.
pub(super) fn looked_up(to: &mut Importer, mut x: Operand, indices: Operand, axis: usize) -> Option<ValueId> {
    let (rank, n_indices) = (to.operand_rank(x), to.operand_rank(indices));
    if axis != 0 {
        let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&other| other != axis)).collect();
        x = to.emit(Primitive::Transpose(order), &[x])?.into();
    }
    let found = to.emit(Primitive::Gather, &[x, indices])?;
    if axis == 0 {
        return Some(found);
    }
    let before = n_indices..n_indices + axis;
    let order: Vec<usize> = before.chain(0..n_indices).chain(n_indices + axis..n_indices + rank - 1).collect();
    to.emit(Primitive::Transpose(order), &[found.into()])
}

/// Takes consecutive known indices as a slice.
fn by_range(to: &mut Importer, data: &Item, axis: usize, of: &[usize], indices: &[i64]) -> Option<Item> {
    let mut shape = to.shape(data)?;
    let extent = i64::try_from(shape[axis]).ok()?;
    let from_end = |index: i64| if index < 0 { index.saturating_add(extent) } else { index };
    let start = from_end(*indices.first()?);
    let is_range = (0..).zip(indices).all(|(at, &index)| from_end(index) == start.saturating_add(at));
    let (start, len) = (usize::try_from(start).ok()?, indices.len());
    is_range.then_some(())?;
    let part = match (start, len) == (0, shape[axis]) {
        true => data.clone(),
        false => {
            let x = to.operand(data)?;
            Item::Value(to.emit(Primitive::Slice { axis, start, len }, &[x])?)
        }
    };
    shape.splice(axis..=axis, of.iter().copied());
    reshaped(to, &part, shape)
}

/// Imports padding with a constant.
pub(super) fn pad(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let x = given.get(0)?;
    let rank = to.shape(x)?.len();
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    let pads = match ints(given.node, "pads") {
        Some(pads) => pads.to_vec(),
        None => given.integers(to, 1)?,
    };
    let axes: Vec<usize> = match given.has(3) {
        true => given.integers(to, 3)?.iter().map(|&value| axis(value, rank)).collect::<Option<_>>()?,
        false => (0..rank).collect(),
    };
    (pads.len() == 2 * axes.len()).then_some(())?;
    for (at, &axis) in axes.iter().enumerate() {
        before[axis] = usize::try_from(pads[at]).ok()?;
        after[axis] = usize::try_from(pads[at + axes.len()]).ok()?;
    }
    if before.iter().chain(&after).all(|&n| n == 0) {
        return Some(vec![x.clone()]);
    }
    let mode = text(given.node, "mode", "constant");
    if mode != "constant" {
        return Some(vec![mirrored(to, x.clone(), mode, &before, &after)?]);
    }
    // Zeros are the usual padding; another number is a function of its own.
    let number = match given.get(2) {
        Some(value) => to.values(value)?,
        // An attribute before opset 11.
        None => Constant { shape: Vec::new(), is_integer: false, values: vec![float(given.node, "value", 0.0)] },
    };
    let is_zero = number.values.iter().all(|&value| value == 0.0);
    if to.runs && !is_zero {
        return Some(vec![filled(to, x.clone(), number, &before, &after)?]);
    }
    let x = to.operand(x)?;
    let padded = to.emit(Primitive::Pad { before, after }, &[x])?;
    if is_zero {
        return Some(vec![Item::Value(padded)]);
    }
    let function = crate::op::ElementFunction::Foreign("pad with a constant");
    Some(vec![Item::Value(to.emit(Primitive::Elementwise(function), &[padded.into()])?)])
}

/// Pads with a number.
fn filled(to: &mut Importer, mut item: Item, number: Constant, before: &[usize], after: &[usize]) -> Option<Item> {
    let number = known(Constant { shape: vec![1; before.len()], ..number });
    let number = to.operand(&number)?;
    for axis in 0..before.len() {
        let mut parts = vec![to.operand(&item)?];
        for (is_first, n) in [(true, before[axis]), (false, after[axis])].into_iter().filter(|(_, n)| *n > 0) {
            let mut shape = to.shape(&item)?;
            shape[axis] = n;
            let part = to.emit(Primitive::Expand(shape), &[number])?;
            parts.insert(if is_first { 0 } else { parts.len() }, part.into());
        }
        if parts.len() > 1 {
            item = Item::Value(to.emit(Primitive::Concat { axis }, &parts)?);
        }
    }
    Some(item)
}

/// Pads with the elements of each axis: mirrored at its ends, or repeated.
pub(super) fn mirrored(
    to: &mut Importer,
    mut item: Item,
    mode: &str,
    before: &[usize],
    after: &[usize],
) -> Option<Item> {
    let shape = to.shape(&item)?;
    for (axis, (&before, &after)) in before.iter().zip(after).enumerate() {
        if before == 0 && after == 0 {
            continue;
        }
        (shape[axis].checked_add(before)?.checked_add(after)? <= MAX_HELD).then_some(())?;
        let (extent, before) = (i64::try_from(shape[axis]).ok()?, i64::try_from(before).ok()?);
        let last = extent - 1;
        let place = |at: i64| match mode {
            "reflect" => Some(if at < 0 {
                -at
            } else if at > last {
                2 * last - at
            } else {
                at
            }),
            "edge" => Some(at.clamp(0, last)),
            "wrap" => Some(at.rem_euclid(extent)),
            _ => None,
        };
        let places = (-before..extent + i64::try_from(after).ok()?).map(place);
        let places: Vec<i64> = places.collect::<Option<_>>()?;
        places.iter().all(|at| (0..extent).contains(at)).then_some(())?;
        item = taken(to, &item, axis, &places)?;
    }
    Some(item)
}

/// The window, steps and zeros of a pool.
pub(super) fn window(given: &NodeInputs, n_space: usize) -> Option<[Vec<usize>; 3]> {
    let (node, ints) = (given.node, ints(given.node, "kernel_shape")?);
    let size: Option<Vec<usize>> = ints.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let pads = extents(node, "pads", 2 * n_space, 0)?;
    let is_floor = int(node, "ceil_mode", 0) == 0;
    let (before, after) = pads.split_at(n_space);
    let is_plain = is_floor && before == after && extents(node, "dilations", n_space, 1)?.iter().all(|&n| n == 1);
    let is_plain = is_plain && text(node, "auto_pad", "NOTSET") == "NOTSET";
    is_plain.then_some([size?, extents(node, "strides", n_space, 1)?, before.to_vec()])
}
