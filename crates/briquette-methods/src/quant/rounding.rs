//! Which point of its grid a weight goes to.

/// How weights are rounded to their grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// To the nearest point.
    #[default]
    Nearest,
    /// GPTQ: column by column, the error carried into the columns that follow, by the gram matrix of the layer's inputs.
    Gptq,
}

impl Rounding {
    /// What recipes call each of them.
    pub const NAMES: [(&'static str, Self); 2] = [("nearest", Self::Nearest), ("gptq", Self::Gptq)];
}
