//! The threshold between dropped and kept scores.

/// A threshold: drops all scores below `key`, and the first `n_ties` scores equal to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Threshold {
    /// The magnitude bits of the score at the threshold.
    pub key: u32,
    /// The number of scores equal to `key` that are dropped, in index order.
    pub n_ties: usize,
}
