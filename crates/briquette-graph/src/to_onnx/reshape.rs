//! Reshapes whose extents may be dynamic.

use super::dims::SymbolicDim;
use super::emitter::Emitter;
use crate::graph::NodeId;
use briquette_core::Result;

/// Reshapes from extents to extents.
///
/// A dynamic extent is copied where it keeps its place; one other may be inferred.
pub(super) fn reshape(
    to: &mut Emitter,
    node: NodeId,
    x: &str,
    from: &[SymbolicDim],
    target: &[SymbolicDim],
) -> Result<String> {
    let mut n_inferred = 0;
    let one = |(axis, dim): (usize, &SymbolicDim)| match dim.is_dynamic() {
        false => dim.extent as i64,
        true if from.get(axis) == Some(dim) => 0,
        true => {
            n_inferred += 1;
            -1
        }
    };
    let shape: Vec<i64> = target.iter().enumerate().map(one).collect();
    match n_inferred {
        0 | 1 => Ok(to.reshape(x, &shape)),
        n => Err(to.refused(node, &format!("found a reshape with {n} dynamic extents"))),
    }
}

/// Repeats axes of extent 1. Axes that are equal keep their extents.
pub(super) fn expand(
    to: &mut Emitter,
    node: NodeId,
    x: &str,
    from: &[SymbolicDim],
    target: &[SymbolicDim],
) -> Result<String> {
    let missing = target.len() - from.len();
    let mut shape = Vec::with_capacity(target.len());
    for (axis, dim) in target.iter().enumerate() {
        let own = axis.checked_sub(missing).map(|axis| from[axis]);
        match (own == Some(*dim), dim.is_dynamic()) {
            (true, _) => shape.push(1),
            (false, false) => shape.push(dim.extent as i64),
            (false, true) => return Err(to.refused(node, "found an expansion to a dynamic extent")),
        }
    }
    let shape = to.ints(&shape);
    Ok(to.plain("Expand", &[x, &shape]))
}
