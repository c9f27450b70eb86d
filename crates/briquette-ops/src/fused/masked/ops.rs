//! Masks and grids as burn operations, with gradients.
//!
//! They support f32 on the CPU (flex), if [`fake_quantizes`] returns true.

mod fake_quantize;
#[cfg(feature = "flex")]
mod flex;
mod host;

pub use fake_quantize::{FakeQuantization, FakeQuantizeGrads, FakeQuantizeOps, fake_quantize};
pub use host::{fake_quantizes, with_bools, with_floats};
