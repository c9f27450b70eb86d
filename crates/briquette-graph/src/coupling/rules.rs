//! One coupling rule for each primitive.

use super::axes::{Axes, AxisIds};
use super::reshape;
use super::uses::Uses;
use crate::expansion::PrimitiveStep;
use crate::graph::{Operand, ValueId};
use crate::lower::Lowered;
use crate::op::{ConvSettings, Primitive};
use crate::union_find::FIXED;
use briquette_core::Result;

/// Unites the ids that a step couples, and gives its outputs their ids.
pub(super) fn apply(axes: &mut Axes, uses: &Uses, lowered: &Lowered, step: &PrimitiveStep) -> Result<()> {
    let node = &step.node;
    let inputs = &node.inputs;
    let first = inputs.first().map_or_else(AxisIds::new, |operand| axes.get(*operand).clone());
    let output = node.outputs[0];
    let shape = &lowered.shapes[output.0];
    let ids = match &node.op {
        Primitive::Elementwise(_) => {
            let operands: Vec<AxisIds> = inputs.iter().map(|operand| axes.get(*operand).clone()).collect();
            broadcast(axes, &operands, shape)
        }
        Primitive::PerChannel { axis } => {
            for vector in &inputs[1..] {
                let vector = axes.get(*vector)[0].clone();
                axes.sets.unite_all(&first[*axis], &vector);
            }
            first
        }
        Primitive::MatMul { transpose_b } => {
            let second = axes.get(inputs[1]).clone();
            matmul(axes, first, second, *transpose_b, shape)
        }
        Primitive::Conv(settings) => conv(axes, settings, inputs, shape)?,
        Primitive::Reshape(to) => {
            let from: Vec<usize> = first.iter().map(Vec::len).collect();
            reshape::apply(axes, uses, &from, to, &first, output);
            return Ok(());
        }
        Primitive::Transpose(permutation) => permutation.iter().map(|&axis| first[axis].clone()).collect(),
        Primitive::Expand(to) => {
            let given = to.iter().map(|&extent| vec![FIXED; extent]).collect();
            broadcast_over(axes, &[first, given], to)
        }
        Primitive::Split { axis, sizes } => {
            split(axes, &first, *axis, sizes, &node.outputs);
            return Ok(());
        }
        Primitive::Slice { axis, start, len } => with_axis(first, *axis, |ids| ids[*start..start + len].to_vec()),
        Primitive::Concat { axis } => concat(axes, inputs, *axis),
        Primitive::Gather => {
            axes.sets.fix(&first[0]);
            [axes.get(inputs[1]).clone(), first[1..].to_vec()].concat()
        }
        Primitive::Reduce { axes: over, .. } => {
            let reduced = |(axis, ids): (usize, Vec<u32>)| if over.contains(&axis) { vec![FIXED] } else { ids };
            first.into_iter().enumerate().map(reduced).collect()
        }
        Primitive::Pool(_) | Primitive::AdaptivePool(_) | Primitive::Resize(_) | Primitive::Spatial { .. } => {
            space_fixed(axes, first, shape)
        }
        Primitive::Pad { .. } | Primitive::PadSame { .. } => padded(axes, first, shape),
        Primitive::Softmax { axis } | Primitive::CumulativeSum { axis } => {
            axes.sets.fix(&first[*axis]);
            first
        }
        Primitive::TopIndices { axis, .. } => {
            axes.sets.fix(&first[*axis]);
            let mut ids = first;
            ids[*axis] = vec![FIXED];
            ids
        }
        Primitive::Route(_) | Primitive::Scale(_) | Primitive::Number { .. } | Primitive::FakeQuantize(_) => first,
        Primitive::Recurrent(_) | Primitive::Unknown { .. } => {
            unknown(axes, lowered, inputs, &node.outputs);
            return Ok(());
        }
    };
    axes.set(output, ids);
    Ok(())
}

/// Unites ids position by position. An axis of extent 1 that others repeat is fixed.
fn broadcast(axes: &mut Axes, operands: &[AxisIds], shape: &[usize]) -> AxisIds {
    let mut found = AxisIds::with_capacity(shape.len());
    for (axis, &extent) in shape.iter().enumerate() {
        let mut common: Option<&Vec<u32>> = None;
        for operand in operands {
            let Some(own) = (axis + operand.len()).checked_sub(shape.len()) else { continue };
            let ids = &operand[own];
            match common {
                _ if ids.len() != extent => axes.sets.fix(ids),
                None => common = Some(ids),
                Some(first) => axes.sets.unite_all(first, ids),
            }
        }
        found.push(common.cloned().unwrap_or_else(|| vec![FIXED; extent]));
    }
    found
}

/// An expansion: axes that grow are fixed, other axes pass.
fn broadcast_over(axes: &mut Axes, operands: &[AxisIds; 2], shape: &[usize]) -> AxisIds {
    let [own, given] = operands;
    let offset = shape.len() - own.len();
    let mut found = given.clone();
    for (axis, ids) in own.iter().enumerate() {
        match ids.len() == shape[axis + offset] {
            true => found[axis + offset].clone_from(ids),
            false => axes.sets.fix(ids),
        }
    }
    found
}

/// Unites the axes that are summed over; rows, columns and batch axes pass.
fn matmul(axes: &mut Axes, mut a: AxisIds, mut b: AxisIds, transpose_b: bool, shape: &[usize]) -> AxisIds {
    let last = b.pop().unwrap_or_default();
    let second_last = b.pop().unwrap_or_default();
    let (k, n) = if transpose_b { (last, second_last) } else { (second_last, last) };
    let summed = a.pop().unwrap_or_default();
    let rows = a.pop().unwrap_or_default();
    axes.sets.unite_all(&summed, &k);
    let mut found = broadcast(axes, &[a, b], &shape[..shape.len() - 2]);
    found.extend([rows, n]);
    found
}

/// One group: input channels are united with the filters' inputs, outputs are the filters.
///
/// Several groups: a group is removed as a whole, so all its inputs and outputs are united. A depthwise convolution has one of each.
fn conv(axes: &mut Axes, settings: &ConvSettings, inputs: &[Operand], shape: &[usize]) -> Result<AxisIds> {
    let (x, weight) = (axes.get(inputs[0]).clone(), axes.get(inputs[1]).clone());
    let outputs = match (settings.groups, settings.transposed) {
        (1, false) => {
            axes.sets.unite_all(&x[1], &weight[1]);
            weight[0].clone()
        }
        (1, true) => {
            axes.sets.unite_all(&x[1], &weight[0]);
            weight[1].clone()
        }
        (groups, transposed) => {
            axes.sets.fix(&weight[1]);
            let outputs = if transposed { axes.fresh(shape[1])? } else { weight[0].clone() };
            let sides: &[&[u32]] = if transposed { &[&x[1], &weight[0], &outputs] } else { &[&x[1], &outputs] };
            for group in 0..groups {
                for side in sides {
                    let n = side.len() / groups;
                    for &id in &side[group * n..(group + 1) * n] {
                        axes.sets.unite(x[1][group * (x[1].len() / groups)], id);
                    }
                }
            }
            outputs
        }
    };
    for kernel in &weight[2..] {
        axes.sets.fix(kernel);
    }
    if let Some(bias) = inputs.get(2) {
        let bias = axes.get(*bias)[0].clone();
        axes.sets.unite_all(&outputs, &bias);
    }
    let mut found = space_fixed(axes, x, shape);
    found[1] = outputs;
    Ok(found)
}

/// Axes that grow are fixed, other axes pass.
fn padded(axes: &mut Axes, mut ids: AxisIds, shape: &[usize]) -> AxisIds {
    for (ids, &extent) in ids.iter_mut().zip(shape).filter(|(ids, extent)| ids.len() != **extent) {
        axes.sets.fix(ids);
        *ids = vec![FIXED; extent];
    }
    ids
}

/// Batch and channels pass; the axes of space are fixed.
fn space_fixed(axes: &mut Axes, mut ids: AxisIds, shape: &[usize]) -> AxisIds {
    for (axis, extent) in shape.iter().enumerate().skip(2) {
        axes.sets.fix(&ids[axis]);
        ids[axis] = vec![FIXED; *extent];
    }
    ids
}

fn with_axis(mut ids: AxisIds, axis: usize, change: impl Fn(&[u32]) -> Vec<u32>) -> AxisIds {
    ids[axis] = change(&ids[axis]);
    ids
}

fn split(axes: &mut Axes, ids: &AxisIds, axis: usize, sizes: &[usize], outputs: &[ValueId]) {
    let mut start = 0;
    for (size, output) in sizes.iter().zip(outputs) {
        axes.set(*output, with_axis(ids.clone(), axis, |ids| ids[start..start + size].to_vec()));
        start += size;
    }
}

/// Joins the ids of one axis and unites those of the others.
fn concat(axes: &mut Axes, inputs: &[Operand], axis: usize) -> AxisIds {
    let parts: Vec<AxisIds> = inputs.iter().map(|operand| axes.get(*operand).clone()).collect();
    let mut found = parts[0].clone();
    for part in &parts[1..] {
        for (at, ids) in part.iter().enumerate() {
            match at == axis {
                true => found[at].extend(ids),
                false => axes.sets.unite_all(&parts[0][at], ids),
            }
        }
    }
    found
}

/// Fixes all axes of all inputs and outputs.
fn unknown(axes: &mut Axes, lowered: &Lowered, inputs: &[Operand], outputs: &[ValueId]) {
    for operand in inputs {
        axes.fix(*operand);
    }
    for output in outputs {
        axes.set(*output, lowered.shapes[output.0].iter().map(|&extent| vec![FIXED; extent]).collect());
    }
}
