//! The role of each weight, and which axis counts its outputs.

use crate::graph::{Graph, GraphInput, InputSource, Node, Operand, WeightId};
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
///
/// A table that is looked up by distances is a bias, as its rows are added to scores. A router is a parameter.
pub fn roles(graph: &Graph) -> Vec<WeightRole> {
    let mut found = vec![None; graph.weights.len()];
    let is_distance = |input: &&GraphInput| {
        use InputSource::{RelativeBuckets, TargetBuckets, WindowDistances};
        matches!(input.source, RelativeBuckets { .. } | TargetBuckets { .. } | WindowDistances { .. })
    };
    let distances: Vec<Operand> = graph.inputs.iter().filter(is_distance).map(|input| input.value.into()).collect();
    let logits: Vec<Operand> = graph.nodes.iter().filter_map(logits).collect();
    let mut has_groups = vec![false; graph.weights.len()];
    for node in &graph.nodes {
        let is_router = node.outputs.iter().any(|output| logits.contains(&Operand::Value(*output)));
        let is_bias = node.inputs.get(1).is_some_and(|indices| distances.contains(indices));
        for (position, WeightId(weight)) in node.weights() {
            let role = match operand_role(&node.op, position) {
                _ if is_bias => Role::Bias,
                Role::Linear if is_router => Role::Parameter,
                role => role,
            };
            let is_first = found[weight].is_none();
            if is_first || role == Role::Embedding {
                found[weight] = Some(role);
            }
            has_groups[weight] |= matches!(&node.op, Op::Primitive(Primitive::Conv(settings)) if settings.groups > 1);
        }
    }
    let with_axis = |((role, weight), has_groups): ((Option<Role>, &crate::graph::Weight), bool)| {
        let role = if weight.dtype.is_weight() { role.unwrap_or(Role::Unknown) } else { Role::Other };
        let role = if role == Role::Parameter && weight.shape.rank() < 2 { Role::Bias } else { role };
        let axis = match role {
            Role::Linear if weight.shape.rank() == 3 => OutputAxis::Stacked,
            // With groups, no axis of a transposed convolution counts outputs.
            Role::Conv if has_groups => OutputAxis::First,
            Role::Linear | Role::Conv => weight.layout,
            _ => OutputAxis::First,
        };
        WeightRole { role, axis }
    };
    found.into_iter().zip(&graph.weights).zip(has_groups).map(with_axis).collect()
}

/// The logits that choose experts.
fn logits(node: &Node) -> Option<Operand> {
    let is_mixture = matches!(node.op, Op::Composite(Composite::Experts { .. } | Composite::SeparateExperts { .. }));
    node.inputs.get(1).copied().filter(|_| is_mixture)
}

/// The role of a weight at a position of a node's inputs.
pub fn operand_role(op: &Op, position: usize) -> Role {
    match (op, position) {
        (Op::Composite(Composite::Linear), 1) => Role::Linear,
        (Op::Composite(Composite::Linear), _) => Role::Bias,
        (Op::Composite(Composite::Embedding), _) => Role::Embedding,
        (Op::Composite(Composite::Experts { .. } | Composite::SeparateExperts { .. }), _) => Role::Linear,
        (Op::Composite(Composite::Attention(_)), _) => Role::Bias,
        (Op::Composite(Composite::Gate(_) | Composite::PrependTokens), _) => Role::Parameter,
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
