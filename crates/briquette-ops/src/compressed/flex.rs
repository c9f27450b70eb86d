//! The CPU, with the kernels of `briquette-cpu`.

mod activations;
mod images;
mod int8_blocks;
mod product;
mod quantized;
