//! The CPU, by the kernels of this crate.

mod fused;
mod images;
mod quantized;
mod tensor;
