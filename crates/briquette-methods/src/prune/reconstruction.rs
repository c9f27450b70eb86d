//! Methods that prune weights and update the remaining weights.

/// How the remaining weights of a layer compensate for the pruned ones. All methods use the Gram matrix of its
/// inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconstruction {
    /// SparseGPT: column by column, with the error carried into the columns that follow.
    SparseGpt,
    /// ADMM: updates the mask and the weights in turn.
    Admm,
}

impl Reconstruction {
    /// The names in recipes.
    pub const NAMES: [(&'static str, Self); 2] = [("sparsegpt", Self::SparseGpt), ("admm", Self::Admm)];

    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}
