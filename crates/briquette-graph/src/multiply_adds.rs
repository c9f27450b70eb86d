//! Multiply-adds of each node: matrix products and convolutions.

use crate::expansion::PrimitiveStep;
use crate::graph::{Graph, Operand};
use crate::lower::Lowered;
use crate::op::{Composite, Op, Primitive};

/// The multiply-adds of each node for the graph's input shapes.
///
/// Experts count as often as they run: `top_k` of them for each token. Products above 2⁶⁴ are cut there.
pub fn multiply_adds(graph: &Graph, lowered: &Lowered) -> Vec<u64> {
    let mut found = vec![0_u64; graph.nodes.len()];
    for step in &lowered.steps {
        let n = &mut found[step.origin.0];
        *n = n.saturating_add(of_step(graph, lowered, step));
    }
    found
}

/// The multiply-adds of one primitive.
pub fn of_step(graph: &Graph, lowered: &Lowered, step: &PrimitiveStep) -> u64 {
    let shape = |operand: Operand| match operand {
        Operand::Value(value) => lowered.shapes[value.0].as_slice(),
        Operand::Weight(weight) => graph.weights[weight.0].shape.0.as_slice(),
    };
    let out = &lowered.shapes[step.node.outputs[0].0];
    let n = match &step.node.op {
        Primitive::MatMul { .. } => {
            let a = shape(step.node.inputs[0]);
            product(&[out, &a[a.len() - 1..]])
        }
        Primitive::Conv(settings) => {
            let (x, weight) = (shape(step.node.inputs[0]), shape(step.node.inputs[1]));
            product(&[if settings.transposed { x } else { out }, &weight[1..]])
        }
        _ => 0,
    };
    let node = &graph.nodes[step.origin.0];
    match &node.op {
        Op::Composite(Composite::Experts { routing, .. } | Composite::SeparateExperts { routing, .. }) => {
            let n_experts = shape(node.inputs[1]).last().copied().unwrap_or(1).max(1);
            n.saturating_mul(routing.top_k as u64) / n_experts as u64
        }
        _ => n,
    }
}

fn product(parts: &[&[usize]]) -> u64 {
    parts.iter().flat_map(|part| part.iter()).fold(1_u64, |n, &extent| n.saturating_mul(extent as u64))
}
