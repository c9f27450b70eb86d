//! All tests in one program, since each test program would link all of burn.

#![allow(clippy::unwrap_used)]

mod cached;
mod codes;
mod families;
mod golden;
mod goldens;
#[cfg(feature = "flex")]
mod gradients;
mod graph_net;
mod onnx;
mod shrink;
mod sound;
mod tokenizers;
