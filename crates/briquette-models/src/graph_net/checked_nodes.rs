//! Whether the nodes of an ONNX model can be run.

use super::weights::check_runs;
use briquette_core::{Error, Result};
use briquette_graph::op::Primitive;
use briquette_graph::{Graph, Op};

/// Most axes of a value.
const MAX_RANK: usize = 6;

/// Refuses nodes of an ONNX model that cannot be run. A graph for other shapes may have nodes that another graph has not.
///
/// # Errors
/// Config: see above; the error names the operator.
pub(super) fn check_nodes(graph: &Graph, shapes: &[Vec<usize>], needed: &[usize]) -> Result<()> {
    needed.iter().map(|&index| &graph.nodes[index]).try_for_each(|node| {
        let most = node.outputs.iter().map(|output| shapes[output.0].len()).max().unwrap_or_default();
        let found = match &node.op {
            _ if most > MAX_RANK => Err(Error::config(format!(
                "{:?} cannot be run: found {most} axes, expected at most {MAX_RANK}",
                node.op.name()
            ))),
            Op::Primitive(Primitive::Conv(settings)) if settings.stride.len() > 2 => {
                Err(Error::config(format!("{:?} over three axes cannot be run", node.op.name())))
            }
            Op::Primitive(Primitive::Gather | Primitive::Conv(_)) | Op::Composite(_) => Ok(()),
            Op::Primitive(primitive) => check_runs(primitive),
        };
        found.map_err(|error| error.at(format!("operation {:?}", node.name)))
    })
}
