//! CPU tensors as slices.

use burn::backend::flex::FlexTensor;

/// Returns the elements of a contiguous tensor of type `E`.
pub(crate) fn elements<E: burn::tensor::Element + bytemuck::Pod>(tensor: &FlexTensor) -> &[E] {
    let (first, n) = (tensor.layout().start_offset(), tensor.layout().shape().num_elements());
    &tensor.storage()[first..first + n]
}

/// Changes the elements of an f32 tensor, in place if it is not shared.
pub(crate) fn change(x: FlexTensor, f: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut data = x.into_data();
    f(data.as_mut_slice().expect("a tensor of f32"));
    FlexTensor::from_data(data)
}

/// Returns a vector as f32, or `None` if not `is_there`; it has a few kilobytes.
pub(crate) fn vector(tensor: FlexTensor, is_there: bool) -> Option<Vec<f32>> {
    is_there.then(|| tensor.into_data().iter::<f32>().collect())
}
