//! The number of weights to prune.

/// The rule that sets which weights are pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropRule {
    /// This many of all weights.
    Count(usize),
    /// This many weights of each row.
    CountPerRow(usize),
    /// All but `n` of every `m` neighbouring inputs.
    NOfM {
        /// The number of inputs kept.
        n: usize,
        /// The number of inputs in each run; it must divide the row.
        m: usize,
    },
}
