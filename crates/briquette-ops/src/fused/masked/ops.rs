//! Masks and grids as burn operations.
//!
//! Each is for f32 on the CPU (flex), where [`simulates`] says so; gradients flow through them.

#[cfg(feature = "flex")]
mod flex;
mod host;
mod simulate;

pub use host::{simulates, with_bools, with_floats};
pub use simulate::{SimulateGrads, SimulateOps, Simulation, simulate};
