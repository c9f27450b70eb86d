//! The CPU, by the kernels of this crate.

mod activations;
mod images;
mod int8_blocks;
mod product;
mod quantized;
mod tensor;
