//! Methods that choose the weights to drop and move those that stay, in one.

/// How the weights of a layer that stay make up for those that are dropped, by the gram matrix of its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconstruction {
    /// SparseGPT: column by column, the error carried into the columns that follow.
    SparseGpt,
    /// ADMM: mask and weights in turns.
    Admm,
}

impl Reconstruction {
    /// What recipes call each of them.
    pub const NAMES: [(&'static str, Self); 2] = [("sparsegpt", Self::SparseGpt), ("admm", Self::Admm)];

    /// What recipes call it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}
