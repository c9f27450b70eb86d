//! The devices that the operations support.

use super::cube;
use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// Returns whether the operations support this device: the CPU or a CUDA device, without autodiff.
pub fn runs_on(device: &Device) -> bool {
    !device.is_autodiff() && (is_cpu(device) || cube::is_cuda(device))
}

/// Returns whether [`look_up`](super::look_up) supports this device.
pub fn looks_up(device: &Device) -> bool {
    is_cpu(device)
}

/// Returns whether this is the CPU, without autodiff.
pub(super) fn is_cpu(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => !device.is_autodiff(),
        _ => false,
    }
}
