//! The devices with fused operations.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Tensor};

/// Rows that fit in the L2 cache of a thread: the widest row of a small transformer takes a few KiB.
const ROWS_PER_THREAD: usize = 128;

/// Returns whether this tensor has fused operations: f32 on the CPU, with or without autodiff.
pub fn fuses<const D: usize>(x: &Tensor<D>) -> bool {
    is_cpu(&x.device().inner()) && x.dtype() == DType::F32
}

/// Returns the number of activation rows that fit in the L2 caches of all threads, if known for this device.
///
/// With autodiff, all activations stay in memory in any case.
pub(crate) fn rows_at_once(device: &Device) -> Option<usize> {
    is_cpu(device).then(|| ROWS_PER_THREAD * rayon::current_num_threads())
}

/// Returns whether this is the CPU, without autodiff.
fn is_cpu(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => !device.is_autodiff(),
        _ => false,
    }
}
