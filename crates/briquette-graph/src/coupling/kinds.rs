//! The kinds of groups: heads, experts, channels, or the width of a residual stream.

use super::axes::Axes;
use super::groups::CouplingGroup;
use super::unit::UnitId;
use crate::graph::{Graph, Operand};
use crate::lower::Lowered;
use crate::op::{Op, Primitive};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of a group's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupKind {
    /// Channels between linear layers.
    FeedForward,
    /// Heads of attention; with shared keys, the heads of queries of one head of keys.
    Heads,
    /// Channels between convolutions, through residual sums and batch norms.
    Channels,
    /// Experts of a mixture.
    Experts,
    /// Channels that a norm or a mean is computed over: removing some changes the others.
    Width,
}

impl GroupKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::FeedForward, Self::Heads, Self::Channels, Self::Experts, Self::Width];

    /// Returns the name in recipes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FeedForward => "feed-forward",
            Self::Heads => "heads",
            Self::Channels => "channels",
            Self::Experts => "experts",
            Self::Width => "width",
        }
    }
}

impl std::fmt::Display for GroupKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the kind of each group.
///
/// A group over which a mean is computed is `Width`. Otherwise, a group that counts products of a batch is `Heads`, a group
/// that is routed over is `Experts`, a group with filters is `Channels`, and any other group is `FeedForward`.
pub(super) fn kinds(
    graph: &Graph,
    lowered: &Lowered,
    axes: &mut Axes,
    groups: &[CouplingGroup],
    unit_of: &BTreeMap<u32, UnitId>,
) -> Vec<GroupKind> {
    let [mut reduced, mut batched, mut routed] = [const { BTreeSet::new() }; 3];
    for step in &lowered.steps {
        let inputs = &step.node.inputs;
        match &step.node.op {
            Primitive::Reduce { axes: over, .. } => {
                over.iter().for_each(|&axis| reduced.extend(groups_of(axes, inputs[0], axis, unit_of)));
            }
            Primitive::Route(_) => {
                let last = axes.get(inputs[0]).len() - 1;
                routed.extend(groups_of(axes, inputs[0], last, unit_of));
            }
            Primitive::MatMul { .. } if inputs.iter().all(|input| matches!(input, Operand::Value(_))) => {
                let n_batch = axes.get(inputs[0]).len().saturating_sub(2);
                (0..n_batch).for_each(|axis| batched.extend(groups_of(axes, inputs[0], axis, unit_of)));
            }
            _ => {}
        }
    }
    let has_filters = |group: &CouplingGroup| {
        group.places.iter().any(|place| {
            let uses = graph.nodes.iter().filter(|node| node.weights().any(|(_, weight)| weight == place.weight));
            uses.into_iter().any(|node| matches!(node.op, Op::Primitive(Primitive::Conv(_))))
        })
    };
    let kind = |(index, group): (usize, &CouplingGroup)| match () {
        () if routed.contains(&index) => GroupKind::Experts,
        () if reduced.contains(&index) => GroupKind::Width,
        () if batched.contains(&index) => GroupKind::Heads,
        () if has_filters(group) => GroupKind::Channels,
        () => GroupKind::FeedForward,
    };
    groups.iter().enumerate().map(kind).collect()
}

/// Returns the groups whose units lie along an axis of a value or weight.
fn groups_of(axes: &mut Axes, operand: Operand, axis: usize, unit_of: &BTreeMap<u32, UnitId>) -> BTreeSet<usize> {
    let ids = axes.get(operand)[axis].clone();
    ids.into_iter().filter_map(|id| Some(unit_of.get(&axes.sets.root(id))?.group)).collect()
}
