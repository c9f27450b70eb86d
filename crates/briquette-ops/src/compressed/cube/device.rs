//! Which devices are CUDA's.

use briquette_cuda::Gpu;
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::Device;

/// The CUDA device that a device is, if it is one.
pub fn gpu_of(device: &Device) -> Option<Gpu> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device @ CubeDevice::Cuda(_)) => Some(Gpu::new(device.client())),
        _ => None,
    }
}

/// Whether it is a CUDA device; unlike [`gpu_of`], this does not start it.
pub(in crate::compressed) fn is_cuda(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)))
}
