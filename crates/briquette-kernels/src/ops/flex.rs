//! The CPU, by the kernels of this crate.

mod activations;
mod images;
mod product;
mod quantized;
mod tensor;
