//! Which devices the operations run on.

use super::cube;
use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// Whether tensors of this device can be given to the operations: it is the CPU's or a CUDA device, and no gradients are
/// recorded on it.
pub fn runs_on(device: &Device) -> bool {
    !device.is_autodiff() && (is_cpu(device) || cube::is_cuda(device))
}

/// Whether rows are looked up in weights that are laid out to be multiplied by: see [`look_up`](super::look_up).
pub fn looks_up(device: &Device) -> bool {
    is_cpu(device)
}

/// Whether it is the CPU, with no gradients recorded.
pub(super) fn is_cpu(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => !device.is_autodiff(),
        _ => false,
    }
}
