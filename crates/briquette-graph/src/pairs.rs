//! Producers and consumers: weights whose outputs are the inputs of other weights.

use crate::coupling::{CouplingGroup, UnitPlace};
use crate::graph::{Graph, WeightId};
use crate::roles::{WeightRole, roles};
use briquette_core::{OutputAxis, Role};

/// The weights on both sides of a group of channels, heads or experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Weights whose outputs the group counts.
    pub producers: Vec<WeightId>,
    /// Weights whose inputs the group counts.
    pub consumers: Vec<WeightId>,
    /// Biases, norms and other vectors in between.
    pub vectors: Vec<WeightId>,
}

/// Elements that a place of a group counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairSide {
    /// Outputs of a layer.
    Outputs,
    /// Inputs of a layer.
    Inputs,
    /// Elements of a bias, a norm or another vector.
    Vector,
}

/// Returns what each place of a group counts.
pub fn sides(graph: &Graph, group: &CouplingGroup) -> Vec<PairSide> {
    let roles = roles(graph);
    group.places.iter().map(|place| side(graph, &roles, place)).collect()
}

fn side(graph: &Graph, roles: &[WeightRole], place: &UnitPlace) -> PairSide {
    let weight = &graph.weights[place.weight.0];
    let is_output = match (roles[place.weight.0].role, roles[place.weight.0].axis) {
        // A table produces its columns.
        (Role::Embedding, _) => place.axis == 1,
        (_, OutputAxis::First) => place.axis == 0,
        (_, OutputAxis::Second) => place.axis == 1,
        (_, OutputAxis::Last) => place.axis + 1 == weight.shape.rank(),
        (_, OutputAxis::Stacked) => place.axis + 2 == weight.shape.rank(),
    };
    match () {
        () if weight.shape.rank() < 2 => PairSide::Vector,
        () if is_output => PairSide::Outputs,
        () => PairSide::Inputs,
    }
}

/// The producers and consumers of each group, in the order of groups.
pub fn pairs(graph: &Graph, groups: &[CouplingGroup]) -> Vec<Pair> {
    let roles = roles(graph);
    let pair = |group: &CouplingGroup| {
        let mut pair = Pair { producers: Vec::new(), consumers: Vec::new(), vectors: Vec::new() };
        for place in &group.places {
            let list = match side(graph, &roles, place) {
                PairSide::Vector => &mut pair.vectors,
                PairSide::Outputs => &mut pair.producers,
                PairSide::Inputs => &mut pair.consumers,
            };
            if !list.contains(&place.weight) {
                list.push(place.weight);
            }
        }
        pair
    };
    groups.iter().map(pair).collect()
}
