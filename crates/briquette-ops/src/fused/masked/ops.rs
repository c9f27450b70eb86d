//! Masks and grids as burn operations.
//!
//! Each is for f32 on the CPU (flex), where [`fake_quantizes`] says so; gradients flow through them.

mod fake_quantize;
#[cfg(feature = "flex")]
mod flex;
mod host;

pub use fake_quantize::{FakeQuantization, FakeQuantizeGrads, SimulateOps, fake_quantize};
pub use host::{fake_quantizes, with_bools, with_floats};
