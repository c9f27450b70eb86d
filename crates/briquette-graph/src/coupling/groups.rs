//! Groups of units that lie in the same axes, and what remains after removing some.

use super::axes::Axes;
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

/// Collects units of two or more that lie in the same places, in the order of the graph's weights.
pub(super) fn groups(graph: &Graph, axes: &mut Axes) -> Vec<CouplingGroup> {
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
    let mut groups: BTreeMap<Vec<UnitPlace>, Vec<Vec<Vec<u32>>>> = BTreeMap::new();
    for places in units.into_values() {
        let key = places.iter().map(|(&(weight, axis), elements)| UnitPlace { weight, axis, width: elements.len() });
        groups.entry(key.collect()).or_default().push(places.into_values().collect());
    }
    let is_cuttable = |(_, units): &(Vec<UnitPlace>, Vec<Vec<Vec<u32>>>)| units.len() > 1;
    groups.into_iter().filter(is_cuttable).map(|(places, units)| CouplingGroup { places, units }).collect()
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
