//! The kinds of stages: their names and their order.

use crate::parse::words::one_of;
use briquette_core::Result;

/// The kind of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StageKind {
    /// Prunes weights.
    Prune,
    /// Quantizes weights.
    Quantize,
    /// Stores floats in another type.
    Cast,
    /// Evaluates the model.
    Evaluate,
    /// Trains a student.
    Distill,
    /// Factorizes linear layers.
    Factorize,
    /// Removes channels, heads and blocks.
    Shrink,
    /// Moves norms and scales into other layers.
    Fold,
}

impl StageKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Prune,
        Self::Quantize,
        Self::Cast,
        Self::Evaluate,
        Self::Distill,
        Self::Factorize,
        Self::Shrink,
        Self::Fold,
    ];

    /// Returns the name, and the first and last position in the order of stages.
    ///
    /// Each stage works on the result of the stages before it. A distill stage may be among shrink, fold,
    /// factorize or prune stages. Shrink and fold come before factorize, because they change whole matrices. Factorize comes before prune, because
    /// the factors of a pruned matrix are dense.
    const fn row(self) -> (&'static str, [usize; 2]) {
        match self {
            Self::Shrink => ("shrink", [0, 0]),
            Self::Fold => ("fold", [1, 1]),
            Self::Factorize => ("factorize", [2, 2]),
            Self::Distill => ("distill", [0, 3]),
            Self::Prune => ("prune", [3, 3]),
            Self::Quantize => ("quantize", [4, 4]),
            Self::Cast => ("cast", [5, 5]),
            // The order of stages does not restrict it; its own check requires that it is the last stage.
            Self::Evaluate => ("evaluate", [0, 5]),
        }
    }

    /// Returns the name in recipes.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the kind with this name.
    ///
    /// # Errors
    /// Config: there is no such kind; the message suggests the most similar name.
    pub fn parse(name: &str) -> Result<Self> {
        one_of("kind", name, &Self::ALL.map(|kind| (kind.name(), kind)))
    }

    /// Returns whether this kind must come before `other`.
    pub(crate) fn comes_before(self, other: Self) -> bool {
        let ([_, last], [first, _]) = (self.row().1, other.row().1);
        first > last
    }

    /// Returns whether the stage needs the whole model, so that the stages before it must finish first.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Distill | Self::Factorize | Self::Shrink | Self::Fold)
    }
}

impl std::fmt::Display for StageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
