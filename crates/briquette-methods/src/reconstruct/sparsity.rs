//! How much goes.

/// Which weights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropRule {
    /// This many of all.
    Count(usize),
    /// This many of each row.
    CountPerRow(usize),
    /// All but `n` of every `m` neighbouring inputs.
    NOfM {
        /// Inputs that are kept.
        n: usize,
        /// Inputs in each run; they divide the row.
        m: usize,
    },
}
