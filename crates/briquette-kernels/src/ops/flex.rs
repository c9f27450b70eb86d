//! The CPU, by the kernels of this crate.

mod fused;
pub(super) mod host;
mod images;
mod quantized;
mod simulate;
mod tensor;
