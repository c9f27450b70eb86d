//! The border between what is dropped and what stays.

/// Everything below `key` is dropped, and the first `n_ties` of those equal to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Threshold {
    /// Bits of the magnitude of the score at the border.
    pub key: u32,
    /// How many scores equal to it are dropped, in order of position.
    pub n_ties: usize,
}
