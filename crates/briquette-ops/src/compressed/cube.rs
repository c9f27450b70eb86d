//! CUDA devices, with the kernels of `briquette-cuda`.

mod device;
mod quantized;
mod weights;

pub use briquette_cuda::keep_kernels;
pub use device::gpu_of;
pub(super) use device::is_cuda;
pub(super) use weights::{CudaConv2d, CudaLinear, CudaTable, conv2d, int4, int8, table};
