//! Scales of channels between two layers: the layer before is divided by them, the layer after is multiplied.

mod auto;
mod awq;
mod balanced;
mod columns;
mod equalize;
mod smooth;

pub use auto::{ChosenScales, auto, column_scales};
pub use awq::{AwqScales, N_EXPONENTS, awq, awq_scales};
pub use balanced::{BALANCED_EXPONENT, balanced};
pub use columns::ScaledColumns;
pub use equalize::equalize;
pub use smooth::{best_smooth, smooth};
