//! Where operations are fused.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Tensor};

/// As many as fit into the L2 cache of a thread: a row of a small transformer takes a few KiB at its widest.
const ROWS_PER_THREAD: usize = 128;

/// Whether there are fused operations for this tensor: it is f32 and on the CPU, with gradients recorded or not.
pub fn fuses<const D: usize>(x: &Tensor<D>) -> bool {
    is_cpu(&x.device().inner()) && x.dtype() == DType::F32
}

/// Rows of activations that are best taken through a network at once on this device, where that is known: as many as
/// stay in the L2 caches of the threads that share them. Where gradients are recorded, all of them are kept anyway.
pub(crate) fn rows_at_once(device: &Device) -> Option<usize> {
    is_cpu(device).then(|| ROWS_PER_THREAD * rayon::current_num_threads())
}

/// Whether it is the CPU, with no gradients recorded.
fn is_cpu(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => !device.is_autodiff(),
        _ => false,
    }
}
