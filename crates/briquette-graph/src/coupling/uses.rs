//! Follows an axis forward to the operation that shows what the axis counts.

use super::segments::segments;
use crate::expansion::PrimitiveStep;
use crate::graph::{Operand, ValueId};
use crate::lower::Lowered;
use crate::op::Primitive;
use std::collections::BTreeSet;

/// What becomes of an axis, from the most to the least suited to be cut into units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It counts products of a batch, such as heads.
    Batch,
    /// It is joined with other axes, as the outermost.
    MergedOuter,
    /// Nothing shows what it counts.
    Passed,
    /// It is joined with other axes, not as the outermost.
    MergedInner,
    /// It is summed over, reduced or cut: all its elements are needed.
    Needed,
}

/// The steps that use each value.
pub(super) struct Uses<'a> {
    lowered: &'a Lowered,
    steps: Vec<Vec<(usize, usize)>>,
}

/// What an operation does with an axis of its input.
enum Next {
    Axes(Vec<(ValueId, usize)>),
    Fate(Fate),
}

impl<'a> Uses<'a> {
    pub(super) fn of(lowered: &'a Lowered) -> Self {
        let mut steps = vec![Vec::new(); lowered.shapes.len()];
        for (index, step) in lowered.steps.iter().enumerate() {
            for (position, value) in step.node.values() {
                steps[value.0].push((index, position));
            }
        }
        Self { lowered, steps }
    }

    /// What becomes of an axis of a value: the worst fate on any path; a batch or merge ends a path.
    pub(super) fn fate(&self, value: ValueId, axis: usize) -> Fate {
        let mut seen = BTreeSet::from([(value, axis)]);
        let mut stack = vec![(value, axis)];
        let mut found: Option<Fate> = None;
        while let Some((value, axis)) = stack.pop() {
            for &(step, position) in &self.steps[value.0] {
                match self.next(&self.lowered.steps[step], position, axis) {
                    Next::Fate(Fate::Needed) => return Fate::Needed,
                    Next::Fate(fate) => found = Some(found.map_or(fate, |other| other.max(fate))),
                    Next::Axes(axes) => stack.extend(axes.into_iter().filter(|place| seen.insert(*place))),
                }
            }
        }
        found.unwrap_or(Fate::Passed)
    }

    fn shape(&self, value: ValueId) -> &[usize] {
        &self.lowered.shapes[value.0]
    }

    fn next(&self, step: &PrimitiveStep, position: usize, axis: usize) -> Next {
        let node = &step.node;
        let to = |axis: usize| Next::Axes(node.outputs.iter().map(|value| (*value, axis)).collect());
        let needed_if = |is_needed: bool| if is_needed { Next::Fate(Fate::Needed) } else { to(axis) };
        let rank = |position: usize| match node.inputs[position] {
            Operand::Value(value) => self.shape(value).len(),
            Operand::Weight(_) => 0,
        };
        let rank_out = self.shape(node.outputs[0]).len();
        match &node.op {
            Primitive::Elementwise(_) | Primitive::Expand(_) => to(axis + rank_out - rank(position)),
            Primitive::PerChannel { axis: channels } => to(if position == 0 { axis } else { *channels }),
            Primitive::MatMul { transpose_b } => self.through_matmul(step, position, axis, *transpose_b),
            Primitive::Conv(settings) if axis == 1 => {
                Next::Fate(if settings.groups == 1 { Fate::Needed } else { Fate::Passed })
            }
            Primitive::Conv(_) | Primitive::Pool(_) | Primitive::AdaptivePool(_) | Primitive::Spatial { .. } => {
                needed_if(axis >= 2)
            }
            Primitive::Resize(_) => to(axis),
            Primitive::Reshape(_) => self.through_reshape(step, axis),
            Primitive::Transpose(permutation) => to(permutation.iter().position(|&from| from == axis).unwrap_or(axis)),
            Primitive::Split { axis: cut, .. } | Primitive::Slice { axis: cut, .. } => needed_if(axis == *cut),
            Primitive::Concat { .. } => to(axis),
            Primitive::Gather if position == 0 => match axis.checked_sub(1) {
                None => Next::Fate(Fate::Needed),
                Some(rest) => to(rest + rank_out + 1 - rank(0)),
            },
            Primitive::Gather => to(axis),
            Primitive::Reduce { axes, .. } => needed_if(axes.contains(&axis)),
            Primitive::Pad { before, after } => needed_if(before[axis] + after[axis] > 0),
            Primitive::PadSame { .. } => needed_if(axis >= 2),
            Primitive::Softmax { axis: over }
            | Primitive::CumulativeSum { axis: over }
            | Primitive::TopIndices { axis: over, .. } => needed_if(axis == *over),
            Primitive::Route(_) | Primitive::Scale(_) | Primitive::Number { .. } | Primitive::FakeQuantize(_) => {
                to(axis)
            }
            Primitive::Recurrent(_) | Primitive::Unknown { .. } => Next::Fate(Fate::Needed),
        }
    }

    fn through_matmul(&self, step: &PrimitiveStep, position: usize, axis: usize, transpose_b: bool) -> Next {
        let node = &step.node;
        let own = node.inputs[position];
        let rank = |operand: Operand| match operand {
            Operand::Value(value) => self.shape(value).len(),
            // Matrices of linear layers have no batch axis; other weights are not followed here.
            Operand::Weight(_) => 2,
        };
        let (n, out) = (rank(own), node.outputs[0]);
        let rank_out = self.shape(out).len();
        let is_second_last = axis + 2 == n;
        let is_contracted = match (position, transpose_b) {
            (1, false) => is_second_last,
            _ => axis + 1 == n,
        };
        if is_contracted {
            return Next::Fate(Fate::Needed);
        }
        if axis + 2 >= n {
            return Next::Axes(vec![(out, if position == 0 { rank_out - 2 } else { rank_out - 1 })]);
        }
        let from_end = n - axis;
        match node.inputs[1 - position] {
            Operand::Value(other) if rank(other.into()) >= from_end => {
                let shape = self.shape(other);
                match shape[shape.len() - from_end] > 1 {
                    true => Next::Fate(Fate::Batch),
                    false => Next::Axes(vec![(out, rank_out - from_end)]),
                }
            }
            _ => Next::Axes(vec![(out, rank_out - from_end)]),
        }
    }

    fn through_reshape(&self, step: &PrimitiveStep, axis: usize) -> Next {
        let (Operand::Value(value), out) = (step.node.inputs[0], step.node.outputs[0]) else {
            return Next::Fate(Fate::Passed);
        };
        let (from, to) = (self.shape(value), self.shape(out));
        let Some((inputs, outputs)) = segments(from, to).into_iter().find(|(inputs, _)| inputs.contains(&axis)) else {
            return Next::Fate(Fate::Passed);
        };
        match (inputs.len(), inputs.first() == Some(&axis)) {
            (1, _) => Next::Axes(vec![(out, outputs[0])]),
            (_, true) => Next::Fate(Fate::MergedOuter),
            (_, false) => Next::Fate(Fate::MergedInner),
        }
    }
}
