//! The role of each weight, and which axis counts its outputs.

use crate::graph::{Graph, WeightId};
use crate::op::{Composite, Op, Primitive};
use briquette_core::{OutputAxis, Role};

/// A weight's role and output axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightRole {
    /// The role.
    pub role: Role,
    /// The axis that counts outputs.
    pub axis: OutputAxis,
}

/// The role of each weight. The first node that uses a weight decides: a tied head is an embedding.
pub fn roles(graph: &Graph) -> Vec<WeightRole> {
    let mut found = vec![None; graph.weights.len()];
    for node in &graph.nodes {
        for (position, WeightId(weight)) in node.weights() {
            let role = operand_role(&node.op, position);
            let is_first = found[weight].is_none();
            if is_first || role == Role::Embedding {
                found[weight] = Some(role);
            }
        }
    }
    let with_axis = |(role, weight): (Option<Role>, &crate::graph::Weight)| {
        let role = if weight.dtype.is_weight() { role.unwrap_or(Role::Unknown) } else { Role::Other };
        let axis = match role {
            Role::Linear if weight.shape.rank() == 3 => OutputAxis::Stacked,
            Role::Linear | Role::Conv => weight.layout,
            _ => OutputAxis::First,
        };
        WeightRole { role, axis }
    };
    found.into_iter().zip(&graph.weights).map(with_axis).collect()
}

/// The role of a weight at a position of a node's inputs.
pub fn operand_role(op: &Op, position: usize) -> Role {
    match (op, position) {
        (Op::Composite(Composite::Linear), 1) => Role::Linear,
        (Op::Composite(Composite::Linear), _) => Role::Bias,
        (Op::Composite(Composite::Embedding), _) => Role::Embedding,
        (Op::Composite(Composite::Experts { .. }), _) => Role::Linear,
        (Op::Composite(Composite::Attention(_)), _) => Role::Bias,
        (Op::Composite(Composite::Gate(_)), _) => Role::Parameter,
        (Op::Composite(_), _) => Role::Norm,
        (Op::Primitive(Primitive::MatMul { .. }), _) => Role::Linear,
        (Op::Primitive(Primitive::Conv(_)), 1) => Role::Conv,
        (Op::Primitive(Primitive::Conv(_)), _) => Role::Bias,
        (Op::Primitive(Primitive::Gather), 0) => Role::Embedding,
        (Op::Primitive(Primitive::PerChannel { .. }), _) => Role::Norm,
        (Op::Primitive(Primitive::Unknown { .. }), _) => Role::Unknown,
        (Op::Primitive(_), _) => Role::Parameter,
    }
}
