//! Weight norms in a plan.

use super::Plan;

impl Plan<'_> {
    /// Returns whether a tensor has the lengths of a weight norm with pruned directions.
    pub(crate) fn is_rescaled(&self, index: usize) -> bool {
        let has = |(&directions, norm): (&usize, &crate::weight_norm::WeightNorm)| {
            norm.lengths == index && self.tensors[directions].prune.is_some()
        };
        self.tensors[index].is_moved && self.norms.iter().any(has)
    }

    /// Counts the norms of these tensors. Each norm keeps at least one weight.
    pub(crate) fn n_norms(&self, tensors: &[usize]) -> usize {
        tensors.iter().filter_map(|index| self.norms.get(index)).map(|norm| norm.groups.n()).sum()
    }

    /// Treats directions as ordinary weights, and leaves their lengths unchanged.
    pub fn forget_norm(&mut self, directions: usize, why: &str) {
        let Some(norm) = self.norms.remove(&directions) else { return };
        if self.tensors[norm.lengths].is_moved {
            self.tensors[norm.lengths].leave(why);
        }
    }
}
