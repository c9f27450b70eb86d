//! Structured pruning: which channels or heads of a network are removed.
//!
//! A unit has elements in several weights, and is removed from all of them. Scores are f64 and at least 0; a unit with a smaller
//! score is safer to remove.

mod budget;
mod energy;
mod select;

pub use budget::{UnitAmount, UnitBudget};
pub use energy::{add_input_energies, add_magnitudes};
pub use select::{among_groups, smallest};

/// How units are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnitScore {
    /// The root of the sum of squared weights of all members.
    #[default]
    L2,
    /// The sum of absolute weights of all members.
    L1,
    /// Random with this seed: the baseline.
    Random(u64),
    /// `sqrt(Σ_j ‖w_j‖² · mean(x_j²))` over the inputs `j` that layers read from the unit (Wanda for structures).
    Wanda,
    /// `sqrt(Σ_j ‖w_j‖² · var(x_j))`: the loss if biases take up the mean of the removed inputs (FLAP's fluctuation).
    ///
    /// Source: An et al., "Fluctuation-based adaptive structured pruning", 2024.
    Flap,
    /// `sqrt(Σ_j importance_j)` over the inputs `j` that layers read from the unit: how much the loss changes without the unit, to first
    /// order.
    ///
    /// Source: Molchanov et al., "Importance estimation for neural network pruning", 2019.
    Taylor,
    /// The loss of the outputs of the layers that read the unit, after a refit: see [`osscar`](crate::reconstruct::osscar).
    Osscar,
}

impl UnitScore {
    /// Returns all scores with their names in recipes; `seed` is the seed of `random`.
    pub fn named(seed: u64) -> [(&'static str, Self); 7] {
        [
            ("l2", Self::L2),
            ("l1", Self::L1),
            ("random", Self::Random(seed)),
            ("wanda", Self::Wanda),
            ("flap", Self::Flap),
            ("taylor", Self::Taylor),
            ("osscar", Self::Osscar),
        ]
    }

    /// Returns whether the score needs input statistics.
    pub fn needs_inputs(self) -> bool {
        matches!(self, Self::Wanda | Self::Flap | Self::Taylor | Self::Osscar)
    }
}
