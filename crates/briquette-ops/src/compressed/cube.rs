//! CUDA devices, with the kernels of `briquette-cuda`.

mod device;
mod quantized;
mod rows;
mod weights;

pub use crate::cube_tensor::gpu_of;
pub use briquette_cuda::keep_kernels;
pub(super) use device::is_cuda;
pub use rows::RowCodeOps;
pub(super) use rows::linears;
pub(super) use weights::{CudaConv2d, CudaLinear, CudaTable, conv2d, int4, int8, table};
