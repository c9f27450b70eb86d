//! All tests in one program, since each test program would link all of burn.

#![allow(clippy::unwrap_used)]

mod batch;
#[cfg(feature = "model")]
mod fold;
#[cfg(all(feature = "nn", feature = "flex"))]
mod in_memory;
mod onnx;
mod shrink;
mod shrink_parts;
#[cfg(feature = "model")]
mod shrink_runs;
