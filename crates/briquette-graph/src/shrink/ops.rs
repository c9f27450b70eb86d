//! Settings of operations that count channels or heads.

use super::cut::UnitCut;
use crate::graph::{Node, Operand, ValueId};
use crate::op::{Composite, Op, Primitive};
use briquette_core::{Error, Result};

/// Changes the settings of a node to those of its smaller inputs and outputs.
pub(super) fn shrink(node: &mut Node, cut: &UnitCut) -> Result<()> {
    let input = |position: usize| match node.inputs.get(position) {
        Some(Operand::Value(value)) => Some(*value),
        _ => None,
    };
    let scaled = |n: &mut usize, position: usize, axis: Axis| match input(position) {
        Some(value) => scale(n, cut, value, axis),
        None => Ok(()),
    };
    match &mut node.op {
        Op::Primitive(primitive) => match primitive {
            Primitive::Reshape(shape) | Primitive::Expand(shape) => *shape = cut.shape(node.outputs[0]),
            Primitive::Split { axis, sizes } => {
                for (size, output) in sizes.iter_mut().zip(&node.outputs) {
                    *size = cut.extents(*output, *axis)[1];
                }
            }
            Primitive::Slice { axis, start, len } => {
                if let Some(value) = input(0) {
                    *start = cut.n_kept(value, *axis, *start);
                    *len = cut.extents(node.outputs[0], *axis)[1];
                }
            }
            Primitive::Conv(settings) if settings.groups > 1 => scaled(&mut settings.groups, 0, Axis::Second)?,
            _ => {}
        },
        Op::Composite(composite) => match composite {
            Composite::Attention(settings) => {
                scaled(&mut settings.heads, 0, Axis::Last)?;
                scaled(&mut settings.kv_heads, 1, Axis::Last)?;
            }
            Composite::HeadNorm { heads, .. } | Composite::SplitHeads { heads, .. } => scaled(heads, 0, Axis::Last)?,
            Composite::GroupNorm { groups, .. } => scaled(groups, 0, Axis::Second)?,
            _ => {}
        },
    }
    Ok(())
}

/// An axis that heads or groups divide.
#[derive(Clone, Copy)]
enum Axis {
    Second,
    Last,
}

/// Scales a number of heads or groups as an axis is scaled.
fn scale(n: &mut usize, cut: &UnitCut, value: ValueId, axis: Axis) -> Result<()> {
    let axis = match axis {
        Axis::Second => 1,
        Axis::Last => cut.shapes[value.0].len() - 1,
    };
    let [before, after] = cut.extents(value, axis);
    if before == 0 || !(*n * after).is_multiple_of(before) {
        return Err(Error::bug(format!("an axis of {before} became {after}, which cuts one of {n} heads or groups")));
    }
    *n = *n * after / before;
    Ok(())
}
