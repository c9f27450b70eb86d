//! All tests in one program, since each test program would link all of burn.

#![allow(clippy::unwrap_used)]

mod compressed_tensors;
#[cfg(feature = "model")]
mod family_codes;
#[cfg(all(feature = "model", feature = "flex"))]
mod graph_check;
#[cfg(all(feature = "nn", feature = "flex"))]
mod law;
#[cfg(all(feature = "model", feature = "flex"))]
mod onnx_round_trip;
mod outsider;
