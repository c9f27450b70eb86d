//! Shapes of values after units are removed.

use crate::coupling::{Couplings, UnitId};
use crate::graph::ValueId;
use std::collections::BTreeSet;

/// The values of a graph before and after units are removed.
pub(super) struct UnitCut<'a> {
    pub(super) shapes: &'a [Vec<usize>],
    pub(super) couplings: &'a Couplings,
    pub(super) removed: &'a BTreeSet<UnitId>,
}

impl UnitCut<'_> {
    /// Returns the number of elements among the first `n` of an axis that remain.
    pub(super) fn n_kept(&self, value: ValueId, axis: usize, n: usize) -> usize {
        let units = self.couplings.values[value.0].get(axis).map_or(&[][..], Vec::as_slice);
        n - units.iter().take(n).flatten().filter(|unit| self.removed.contains(unit)).count()
    }

    /// Returns the extent of an axis before and after.
    pub(super) fn extents(&self, value: ValueId, axis: usize) -> [usize; 2] {
        let before = self.shapes[value.0][axis];
        [before, self.n_kept(value, axis, before)]
    }

    /// Returns the shape after.
    pub(super) fn shape(&self, value: ValueId) -> Vec<usize> {
        (0..self.shapes[value.0].len()).map(|axis| self.extents(value, axis)[1]).collect()
    }
}
