//! OSSCAR: chooses groups of inputs to remove, so that layers lose the least after their weights are refitted.

mod layer;
#[cfg(test)]
mod tests;

use crate::reconstruct::refit::Consumer;
use layer::LayerState;
use std::collections::BTreeSet;

/// The largest number of swaps after the greedy removal.
const MAX_SWAPS: usize = 64;
/// The largest number of removed units that are tried for a swap.
const MAX_CANDIDATES: usize = 64;

/// Returns the units to remove, ascending.
///
/// `units[l][u]` are the columns of unit `u` in layer `l`; a unit is removed from all layers. With
/// `A = Σ x xᵀ + damping·mean(diag)·I`, and `W` the weights that minimize `tr((Ŵ - W₀) A (Ŵ - W₀)ᵀ)` for the inputs that are left,
/// removing a unit `g` costs `tr(W_g ((A⁻¹)_gg)⁻¹ W_gᵀ)`. The unit with the smallest sum over layers is removed, `W` and `A⁻¹` are
/// updated, and so on. Then a removed unit is exchanged for another one as long as the loss falls.
///
/// Takes 16 bytes for each pair of inputs. Returns none if a layer observed no inputs or its `A` has no factor in f64.
/// Source: Meng et al., "OSSCAR: One-Shot Structured Pruning in Vision and Language Models with Combinatorial Optimization", 2024,
/// section 3.
///
/// # Errors
/// The first error of `check_stop`, which is called for every unit.
///
/// # Panics
/// If layers have different numbers of units, or `n_removed` exceeds it.
pub fn osscar<E>(
    layers: &[Consumer],
    units: &[Vec<Vec<usize>>],
    n_removed: usize,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<Option<Vec<usize>>, E> {
    let n_units = units.first().map_or(0, Vec::len);
    assert!(layers.len() == units.len() && units.iter().all(|own| own.len() == n_units), "one unit in every layer");
    assert!(n_removed <= n_units, "{n_removed} of {n_units} units");
    let mut states = Vec::with_capacity(layers.len());
    for (layer, units) in layers.iter().zip(units) {
        let Some(state) = LayerState::of(*layer, units, check_stop)? else { return Ok(None) };
        states.push(state);
    }
    let mut search = OsscarSearch { layers: states, n_units, removed: BTreeSet::new() };
    for _ in 0..n_removed {
        check_stop()?;
        let Some((unit, _)) = search.cheapest() else { return Ok(None) };
        search.remove(unit);
    }
    search.swap(check_stop)?;
    Ok(Some(search.removed.into_iter().collect()))
}

/// The layers without the units that are removed so far.
struct OsscarSearch<'a> {
    layers: Vec<LayerState<'a>>,
    n_units: usize,
    removed: BTreeSet<usize>,
}

impl OsscarSearch<'_> {
    /// Returns the unit whose removal costs the least, and its cost. Ties go to the lower index.
    fn cheapest(&self) -> Option<(usize, f64)> {
        let mut costs = vec![0.0; self.n_units];
        self.layers.iter().for_each(|layer| layer.add_costs(&self.removed, &mut costs));
        let left = (0..self.n_units).filter(|unit| !self.removed.contains(unit) && costs[*unit].is_finite());
        left.map(|unit| (unit, costs[unit])).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn remove(&mut self, unit: usize) {
        self.layers.iter_mut().for_each(|layer| layer.remove(unit));
        self.removed.insert(unit);
    }

    fn add(&mut self, unit: usize) {
        self.layers.iter_mut().for_each(|layer| layer.add(unit));
        self.removed.remove(&unit);
    }

    /// Exchanges a removed unit for another one while the loss falls. Units that gain more are tried first.
    fn swap<E>(&mut self, check_stop: &impl Fn() -> Result<(), E>) -> Result<(), E> {
        if self.removed.is_empty() || self.removed.len() == self.n_units {
            return Ok(());
        }
        self.layers.iter_mut().for_each(LayerState::prepare_adding);
        for _ in 0..MAX_SWAPS {
            let mut is_better = false;
            for (unit, gain) in self.gains().into_iter().take(MAX_CANDIDATES) {
                check_stop()?;
                self.add(unit);
                match self.cheapest() {
                    // Rounding errors are far below this share.
                    Some((other, cost)) if other != unit && cost < gain * (1.0 - 1e-6) => {
                        self.remove(other);
                        is_better = true;
                        break;
                    }
                    _ => self.remove(unit),
                }
            }
            if !is_better {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the removed units with the decrease of the loss that adding each one brings, largest first.
    fn gains(&self) -> Vec<(usize, f64)> {
        let units: Vec<usize> = self.removed.iter().copied().collect();
        let mut gains = vec![0.0; units.len()];
        self.layers.iter().for_each(|layer| layer.add_gains(&units, &mut gains));
        let mut found: Vec<(usize, f64)> = units.into_iter().zip(gains).filter(|(_, gain)| gain.is_finite()).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found
    }
}
