//! Multiply-adds of each node: matrix products and convolutions.

use crate::graph::Graph;
use crate::lower::Lowered;
use crate::op::{Composite, Op, Primitive};

/// The multiply-adds of each node for the graph's input shapes.
///
/// Experts count as often as they run: `top_k` of them for each token. Products above 2⁶⁴ are cut there.
pub fn multiply_adds(graph: &Graph, lowered: &Lowered) -> Vec<u64> {
    let mut found = vec![0_u64; graph.nodes.len()];
    for step in &lowered.steps {
        let shape = |operand| match operand {
            crate::graph::Operand::Value(crate::graph::ValueId(value)) => lowered.shapes[value].as_slice(),
            crate::graph::Operand::Weight(crate::graph::WeightId(weight)) => graph.weights[weight].shape.0.as_slice(),
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
        found[step.origin.0] = found[step.origin.0].saturating_add(n);
    }
    for (node, n) in graph.nodes.iter().zip(&mut found) {
        if let Op::Composite(Composite::Experts { top_k, .. }) = &node.op {
            let crate::graph::Operand::Value(logits) = node.inputs[1] else { continue };
            let n_experts = lowered.shapes[logits.0].last().copied().unwrap_or(1).max(1) as u64;
            *n = *n / n_experts * *top_k as u64;
        }
    }
    found
}

fn product(parts: &[&[usize]]) -> u64 {
    parts.iter().flat_map(|part| part.iter()).fold(1_u64, |n, &extent| n.saturating_mul(extent as u64))
}
