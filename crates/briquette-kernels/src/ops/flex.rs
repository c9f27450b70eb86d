//! The CPU, by the kernels of this crate.

mod activations;
mod fused;
mod images;
mod quantized;
mod tensor;
