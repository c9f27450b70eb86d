//! Detection of CUDA devices.

use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::Device;

/// Returns whether this is a CUDA device. Unlike [`gpu_of`](super::gpu_of), does not initialize it.
pub(in crate::compressed) fn is_cuda(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)))
}
