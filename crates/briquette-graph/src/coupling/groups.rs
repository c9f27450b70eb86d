//! Groups of units that lie in the same axes, and what remains after removing some.

use super::axes::Axes;
use super::unit::UnitId;
use crate::graph::{Graph, WeightId};
use crate::union_find::FIXED;
use serde::Serialize;
use std::collections::BTreeMap;

/// An axis of a weight that a group cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct UnitPlace {
    /// The weight.
    pub weight: WeightId,
    /// The axis.
    pub axis: usize,
    /// Elements of the axis that belong to each unit, such as the width of a head.
    pub width: usize,
}

/// Units that can be removed, each from all places at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CouplingGroup {
    /// The axes that are cut, in the order of weights.
    pub places: Vec<UnitPlace>,
    /// For each unit, the elements that it has in each place.
    pub units: Vec<Vec<Vec<u32>>>,
}

impl CouplingGroup {
    /// Returns whether a node of a block uses one of its weights.
    pub fn is_in_block(&self, graph: &Graph) -> bool {
        let nodes = graph.blocks.iter().flat_map(|block| &graph.nodes[block.nodes.clone()]);
        let mut weights = nodes.flat_map(|node| node.weights().map(|(_, weight)| weight));
        weights.any(|weight| self.places.iter().any(|place| place.weight == weight))
    }
}

/// Collects units of two or more that lie in the same places, in the order of the graph's weights.
///
/// Returns the groups, and the unit of each set of ids.
pub(super) fn groups(graph: &Graph, axes: &mut Axes) -> (Vec<CouplingGroup>, BTreeMap<u32, UnitId>) {
    let mut units: BTreeMap<u32, BTreeMap<(WeightId, usize), Vec<u32>>> = BTreeMap::new();
    for weight in 0..graph.weights.len() {
        for axis in 0..axes.weights[weight].len() {
            for element in 0..axes.weights[weight][axis].len() {
                let root = axes.sets.root(axes.weights[weight][axis][element]);
                if root != FIXED {
                    let places = units.entry(root).or_default();
                    places.entry((WeightId(weight), axis)).or_default().push(element as u32);
                }
            }
        }
    }
    /// The root of a unit, and its elements at each place.
    type Unit = (u32, Vec<Vec<u32>>);
    let mut found: BTreeMap<Vec<UnitPlace>, Vec<Unit>> = BTreeMap::new();
    for (root, places) in units {
        let key = places.iter().map(|(&(weight, axis), elements)| UnitPlace { weight, axis, width: elements.len() });
        found.entry(key.collect()).or_default().push((root, places.into_values().collect()));
    }
    let (mut groups, mut unit_of) = (Vec::new(), BTreeMap::new());
    for (places, units) in found.into_iter().filter(|(_, units)| units.len() > 1) {
        let group = groups.len();
        unit_of.extend(units.iter().enumerate().map(|(unit, (root, _))| (*root, UnitId { group, unit })));
        groups.push(CouplingGroup { places, units: units.into_iter().map(|(_, elements)| elements).collect() });
    }
    (groups, unit_of)
}

/// Parameters of the graph after removing a share of the units of each group, at least one unit of each left.
pub fn parameters_left(graph: &Graph, groups: &[CouplingGroup], removed: f64) -> usize {
    let mut extents: Vec<Vec<usize>> = graph.weights.iter().map(|weight| weight.shape.0.clone()).collect();
    for group in groups {
        let n = group.units.len();
        let n_removed = ((n as f64 * removed.clamp(0.0, 1.0)) as usize).min(n - 1);
        for place in &group.places {
            extents[place.weight.0][place.axis] -= n_removed * place.width;
        }
    }
    let parameters = graph.weights.iter().zip(&extents).filter(|(weight, _)| !weight.is_buffer);
    parameters.map(|(_, extents)| extents.iter().product::<usize>()).sum()
}
