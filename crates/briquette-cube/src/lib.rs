//! int8, int4 and sparse matrix products for GPUs, in CubeCL.
//!
//! The kernels behind the operations of `briquette-kernels` on CUDA. They know nothing of burn: buffers in, buffers out.

pub mod quantize_rows;

