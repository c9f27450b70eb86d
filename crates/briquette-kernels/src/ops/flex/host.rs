//! Tensors of the CPU in place.

use super::tensor::elements;
use burn::backend::Flex;
use burn::tensor::{Bool, BoolStore, DType, Tensor};

/// Calls `f` with the elements of a tensor of f32.
pub(in crate::ops) fn floats<const D: usize, R>(tensor: Tensor<D>, f: impl FnOnce(&[f32]) -> R) -> Option<R> {
    let tensor = tensor.try_into_primitive::<Flex>().ok()?.to_contiguous();
    Some(f(elements(&tensor)))
}

/// Calls `f` with a byte for each boolean.
pub(in crate::ops) fn bools<R>(tensor: Tensor<1, Bool>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let tensor = tensor.try_into_primitive::<Flex>().ok()?.to_contiguous();
    matches!(tensor.dtype(), DType::Bool(BoolStore::Native | BoolStore::U8)).then(|| f(elements(&tensor)))
}
