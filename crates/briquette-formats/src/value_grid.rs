//! The fixed grid of an activation.

use serde::{Deserialize, Serialize};

/// The grid of an activation's codes from 0 to 255: `x ≈ (code − zero) · scale`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueGrid {
    /// The step between neighbouring values, an f32.
    pub scale: f64,
    /// The code of 0.
    pub zero: u8,
}

impl ValueGrid {
    /// Takes the place of a grid that data have not given yet.
    pub const UNKNOWN: Self = Self { scale: 1.0, zero: 128 };
}
