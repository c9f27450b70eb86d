//! Roles that follow from the graph of a network.

use briquette_core::{OutputAxis, Role};
use briquette_formats::WeightLayout;
use briquette_graph::roles::{WeightRole, roles};
use briquette_graph::{Graph, Weight};
use briquette_writer::known::{Known, Reason};
use std::collections::HashMap;

/// Returns the role of each tensor that a node uses.
///
/// A second name of a tied weight is left out, because a file may store other values under it.
pub(super) fn known(graph: &Graph, layout: Option<WeightLayout>) -> HashMap<String, Known> {
    let usual = if layout == Some(WeightLayout::Burn) { OutputAxis::Last } else { OutputAxis::First };
    let known = |(weight, found): (&Weight, WeightRole)| {
        let why = reason(weight, found, usual);
        (weight.name.clone(), Known { role: found.role, axis: found.axis, why })
    };
    graph.weights.iter().zip(roles(graph)).map(known).collect()
}

fn reason(weight: &Weight, WeightRole { role, axis }: WeightRole, usual: OutputAxis) -> Reason {
    let is_layer_weight = weight.shape.rank() == 2 && weight.name.ends_with(".weight");
    match role {
        Role::Linear if axis == usual && is_layer_weight => Reason::LinearOfGraph,
        Role::Linear | Role::Conv if axis.is_turned() => Reason::TurnedInGraph,
        _ => Reason::Graph,
    }
}
