//! Graphs without some units of their coupling groups.

mod cut;
mod ops;

use crate::coupling::{Couplings, UnitId};
use crate::graph::{Graph, ValueId, WeightId};
use briquette_core::{Error, Result};
use cut::UnitCut;
use std::collections::BTreeSet;

/// The indices that remain along one axis of a weight, ascending; none if the axis is not cut.
pub type KeptIndices = Option<Vec<usize>>;

/// A graph without some units, and what remains of each weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The smaller graph. Nodes, values and weights keep their indices and names.
    pub graph: Graph,
    /// The remaining indices along each axis of each weight, in the order of the graph's weights.
    pub kept: Vec<Vec<KeptIndices>>,
}

impl Graph {
    /// Returns the network without these units: smaller weights, and settings such as heads and groups that fit them.
    ///
    /// The smaller network computes the outputs of the network whose removed units are 0 in every place, if no norm or mean
    /// is computed over them ([`GroupKind::Width`](crate::coupling::GroupKind::Width)).
    ///
    /// # Errors
    /// - Config: a group or unit does not exist, or nothing is left of an axis or of a part of it.
    /// - Bug: the smaller graph is not sound.
    pub fn without_units(&self, couplings: &Couplings, removed: &BTreeSet<UnitId>) -> Result<Shrunk> {
        let kept = self.kept(couplings, removed)?;
        let mut graph = self.clone();
        for (weight, axes) in graph.weights.iter_mut().zip(&kept) {
            for (extent, kept) in weight.shape.0.iter_mut().zip(axes) {
                *extent = kept.as_ref().map_or(*extent, Vec::len);
            }
        }
        let before = self.lower()?;
        let cut = UnitCut { shapes: &before.shapes, couplings, removed };
        for node in &mut graph.nodes {
            ops::shrink(node, &cut).map_err(|error| error.at(format_args!("node {:?}", node.name)))?;
        }
        let after = graph.lower().map_err(|error| {
            Error::config(format!(
                "nothing is left of a part of the network ({error}); remove less, or exclude its layers"
            ))
        })?;
        for (value, name) in graph.values.iter().enumerate() {
            let expected = cut.shape(ValueId(value));
            if after.shapes[value] != expected {
                return Err(Error::bug(format!("{name}: found {:?}, expected {expected:?}", after.shapes[value])));
            }
        }
        Ok(Shrunk { graph, kept })
    }

    /// Returns the indices of each weight that no removed unit has.
    fn kept(&self, couplings: &Couplings, removed: &BTreeSet<UnitId>) -> Result<Vec<Vec<KeptIndices>>> {
        let mut gone: Vec<Vec<BTreeSet<usize>>> =
            self.weights.iter().map(|weight| vec![BTreeSet::new(); weight.shape.rank()]).collect();
        for id in removed {
            let group = couplings.groups.get(id.group);
            let Some((group, unit)) = group.and_then(|group| Some((group, group.units.get(id.unit)?))) else {
                return Err(Error::config(format!(
                    "found unit {} of group {}, which does not exist",
                    id.unit, id.group
                )));
            };
            for (place, elements) in group.places.iter().zip(unit) {
                gone[place.weight.0][place.axis].extend(elements.iter().map(|&element| element as usize));
            }
        }
        let of_weight = |(weight, axes): (usize, Vec<BTreeSet<usize>>)| {
            let of_axis = |(axis, gone): (usize, BTreeSet<usize>)| self.kept_of_axis(WeightId(weight), axis, &gone);
            axes.into_iter().enumerate().map(of_axis).collect()
        };
        gone.into_iter().enumerate().map(of_weight).collect()
    }

    fn kept_of_axis(&self, weight: WeightId, axis: usize, gone: &BTreeSet<usize>) -> Result<KeptIndices> {
        let weight = &self.weights[weight.0];
        let kept: Vec<usize> = (0..weight.shape.0[axis]).filter(|index| !gone.contains(index)).collect();
        match (gone.is_empty(), kept.is_empty()) {
            (true, _) => Ok(None),
            (false, true) => {
                let message = format!("nothing is left of axis {axis} of {}; remove less", weight.shape);
                Err(Error::config(message).at(format_args!("tensor {:?}", weight.name)))
            }
            (false, false) => Ok(Some(kept)),
        }
    }
}
