//! The CPU, by the kernels of this crate.

mod activations;
mod fused;
mod images;
mod int8_blocks;
mod quantized;
mod tensor;
