//! The kinds of stages: their names, and the order they come in.

use crate::parse::words::one_of;
use briquette_core::Result;

/// What a stage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StageKind {
    /// Drops weights.
    Prune,
    /// Rounds weights to a grid.
    Quantize,
    /// Stores floats in another type.
    Cast,
    /// Runs the model.
    Evaluate,
    /// Trains a student.
    Distill,
    /// Makes two factors of linear layers.
    Factorize,
}

impl StageKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Prune, Self::Quantize, Self::Cast, Self::Evaluate, Self::Distill, Self::Factorize];

    /// What recipes call it, and the first and last place that it may have in the order of stages, each of which works on what
    /// those before it left. A distill stage may stand among factorize or among prune stages. Factorize comes before prune: a
    /// factor of a pruned matrix is dense again.
    const fn row(self) -> (&'static str, [usize; 2]) {
        match self {
            Self::Factorize => ("factorize", [0, 0]),
            Self::Distill => ("distill", [0, 1]),
            Self::Prune => ("prune", [1, 1]),
            Self::Quantize => ("quantize", [2, 2]),
            Self::Cast => ("cast", [3, 3]),
            // It may stand anywhere as far as the order goes; that it is the last is checked with its data.
            Self::Evaluate => ("evaluate", [0, 3]),
        }
    }

    /// What recipes call it.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The kind with this name.
    ///
    /// # Errors
    /// Config, with the nearest name.
    pub fn parse(name: &str) -> Result<Self> {
        one_of("kind", name, &Self::ALL.map(|kind| (kind.name(), kind)))
    }

    /// Whether it must come before `other`.
    pub(crate) fn comes_before(self, other: Self) -> bool {
        let ([_, last], [first, _]) = (self.row().1, other.row().1);
        first > last
    }

    /// Whether it works on a whole model rather than on one tensor after another, so that a run has to finish the stages before it
    /// first.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Distill | Self::Factorize)
    }
}

impl std::fmt::Display for StageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
