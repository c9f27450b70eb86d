//! Grids of activations that are fixed before a network runs.

use serde::Serialize;

/// Integer codes with a scale and a zero point that do not depend on the input: `x ≈ (code − zero) · scale`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FixedGrid {
    /// The step between neighbouring values; finite and above 0.
    pub scale: f32,
    /// The code of 0.
    pub zero: i32,
    /// The lowest and the highest code.
    pub codes: [i32; 2],
}
