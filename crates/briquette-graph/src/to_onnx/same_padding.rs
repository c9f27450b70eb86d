//! Zeros that follow from the image: part of the convolution after them, or constants.

use super::dims::SymbolicDim;
use super::emitter::Emitter;
use super::spatial::pad;
use crate::graph::{Node, NodeId, ValueId};
use crate::op::{Op, Primitive, same_zeros};
use briquette_core::Result;

/// Adds the zeros, unless the convolution after them does so itself.
pub(super) fn pad_same(to: &mut Emitter, id: NodeId, x: &str, size: &[usize], stride: &[usize]) -> Result<String> {
    let node = &to.symbolic.graph.nodes[id.0];
    if conv_pads(to, node.outputs[0]) {
        return Ok(x.to_string());
    }
    let dims = to.dims(node.inputs[0]);
    let zeros = |(at, dim): (usize, &SymbolicDim)| same_zeros(dim.extent, *size.get(at)?, *stride.get(at)?);
    let zeros: Option<Vec<[usize; 2]>> = dims[2..].iter().enumerate().map(zeros).collect();
    match zeros {
        Some(zeros) if !dims[2..].iter().any(|dim| dim.is_dynamic()) => {
            let [before, after] = [0, 1].map(|side: usize| {
                let space = zeros.iter().map(|both| both[side]);
                [0, 0].into_iter().chain(space).collect::<Vec<usize>>()
            });
            Ok(pad(to, x, &before, &after))
        }
        _ => Err(to.refused(id, "found zeros that follow from the image and no convolution after them")),
    }
}

/// Whether every user of a padded value is a convolution that can add the zeros.
pub(super) fn conv_pads(to: &Emitter, padded: ValueId) -> bool {
    let graph = &to.symbolic.graph;
    let Some(Op::Primitive(Primitive::PadSame { size, stride })) =
        graph.nodes.iter().find(|node| node.outputs == [padded]).map(|node| &node.op)
    else {
        return false;
    };
    let takes_over = |node: &Node| match &node.op {
        Op::Primitive(Primitive::Conv(settings)) => {
            let is_plain = !settings.transposed && settings.padding.iter().all(|&n| n == 0);
            let kernel = node.weights().find(|(position, _)| *position == 1).map(|(_, weight)| weight);
            let space = kernel.map(|weight| &graph.weights[weight.0].shape.0[2..]);
            // With distances between elements, ONNX counts the wider window.
            let is_dense = settings.dilation.iter().all(|&n| n == 1);
            is_plain && is_dense && settings.stride == *stride && space == Some(size)
        }
        _ => false,
    };
    let mut users = graph.nodes.iter().filter(|node| node.values().any(|(_, value)| value == padded));
    !graph.outputs.contains(&padded) && users.all(takes_over)
}
