//! The sizes of the pieces in which tensors are read.

/// The sizes of the pieces in which tensors are read. They change the memory of a run, not its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceSizes {
    /// Tensors of at most this many bytes are read as a whole, so that the survey need not read them.
    pub whole_bytes: usize,
    /// The size of the pieces of a larger tensor.
    pub piece_bytes: usize,
    /// The most bytes of scores near a threshold that a survey collects.
    pub key_bytes: usize,
    /// Whether large tensors whose outputs are not their first axis are cut too. What is written of them is read back.
    pub cuts_turned: bool,
}

impl PieceSizes {
    /// The usual sizes.
    pub const LARGE: Self =
        Self { whole_bytes: 24 << 20, piece_bytes: 8 << 20, key_bytes: 16 << 20, cuts_turned: true };
    /// Sizes for a run with little memory, which reads large tensors more often.
    pub const SMALL: Self = Self { whole_bytes: 2 << 20, piece_bytes: 1 << 20, key_bytes: 1 << 20, cuts_turned: true };
}
