//! How weights are rounded to their grids.

/// How weights are rounded to their grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// To the nearest grid point.
    #[default]
    Nearest,
    /// GPTQ: column by column, with the error carried into later columns. It uses the Gram matrix of the
    /// inputs.
    Gptq,
}

impl Rounding {
    /// The names in recipes.
    pub const NAMES: [(&'static str, Self); 2] = [("nearest", Self::Nearest), ("gptq", Self::Gptq)];
}
