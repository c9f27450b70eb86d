//! The extents of the example that a graph is built for.

/// The extents that shapes and multiply-adds are computed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents {
    /// Items in a batch.
    pub batch: usize,
    /// Tokens of a text, cut to the model's longest input.
    pub tokens: usize,
    /// Height and width of an image, for networks that take any.
    pub image: [usize; 2],
}

impl Extents {
    /// The example that programs for running are planned for. A batch of 2 differs from the extent 1 of weights that are repeated.
    pub const EXAMPLE: Self = Self { batch: 2, tokens: 5, image: [224, 224] };
}

impl Default for Extents {
    fn default() -> Self {
        Self { batch: 1, tokens: 128, image: [224, 224] }
    }
}
