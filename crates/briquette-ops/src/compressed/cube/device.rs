//! Detection of CUDA devices.

use briquette_cuda::Gpu;
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::Device;

/// Returns the CUDA device of a burn device, if it is one.
pub fn gpu_of(device: &Device) -> Option<Gpu> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device @ CubeDevice::Cuda(_)) => Some(Gpu::new(device.client())),
        _ => None,
    }
}

/// Returns whether this is a CUDA device. Unlike [`gpu_of`], does not initialize it.
pub(in crate::compressed) fn is_cuda(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)))
}
