//! Access to the elements of CPU tensors in place.

#[cfg(feature = "flex")]
use super::flex;
use burn::backend::DispatchDevice;
use burn::tensor::{Bool, DType, Device, Tensor};

/// Returns whether this is the CPU, without autodiff.
fn is_cpu(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => !device.is_autodiff(),
        _ => false,
    }
}

/// Returns whether the training operations support `x`: f32 on the CPU, with or without autodiff.
pub fn fake_quantizes<const D: usize>(x: &Tensor<D>) -> bool {
    is_cpu(&x.device().inner()) && x.dtype() == DType::F32
}

/// Calls `f` with the elements of a CPU tensor, without a copy if they are contiguous.
///
/// Returns `None` if the tensor is on another device or not f32.
pub fn with_floats<const D: usize, R>(tensor: &Tensor<D>, f: impl FnOnce(&[f32]) -> R) -> Option<R> {
    if !fake_quantizes(tensor) {
        return None;
    }
    flex::floats(tensor.clone().without_autodiff(), f)
}

/// Like [`with_floats`] for booleans, one byte each.
pub fn with_bools<R>(tensor: &Tensor<1, Bool>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    if !is_cpu(&tensor.device().inner()) {
        return None;
    }
    flex::bools(tensor.clone().without_autodiff(), f)
}

#[cfg(not(feature = "flex"))]
mod flex {
    use burn::tensor::{Bool, Tensor};

    pub(super) fn floats<const D: usize, R>(_: Tensor<D>, _: impl FnOnce(&[f32]) -> R) -> Option<R> {
        None
    }

    pub(super) fn bools<R>(_: Tensor<1, Bool>, _: impl FnOnce(&[u8]) -> R) -> Option<R> {
        None
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use burn::tensor::FloatDType;

    #[test]
    fn cpu_tensors_are_read_in_place_with_and_without_autodiff() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let floats = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
            let bools = floats.clone().greater_elem(2.5).reshape([6]);
            assert_eq!(with_floats(&floats.transpose(), <[f32]>::to_vec), Some(vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
            assert_eq!(with_bools(&bools, <[u8]>::to_vec), Some(vec![0, 0, 1, 1, 1, 1]));
            let half = Tensor::<1>::ones([3], &device).cast(FloatDType::BF16);
            assert_eq!(with_floats(&half, <[f32]>::len), None, "f16 tensors have no f32 elements");
        }
    }
}
