//! A batch that goes through a network a part at a time.

use crate::device::rows_at_once;
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::ops::Range;

/// What `forward` gives for each of the `batch` sequences of `length` tokens, joined along the first dimension: of as many sequences at once as stay
/// in the caches, which do not depend on each other.
pub fn in_parts<const D: usize>(
    device: &Device,
    [batch, length]: [usize; 2],
    mut forward: impl FnMut(Range<usize>) -> Tensor<D>,
) -> Tensor<D> {
    let at_once = rows_at_once(device).map_or(batch, |rows| (rows / length.max(1)).max(1));
    if batch <= at_once {
        return forward(0..batch);
    }
    let mut parts = (0..batch).step_by(at_once).map(|start| forward(start..batch.min(start + at_once))).peekable();
    let (mut dims, dtype) = parts.peek().map_or(([0; D], DType::F32), |part| (part.dims(), part.dtype()));
    if dtype != DType::F32 {
        return Tensor::cat(parts.collect(), 0);
    }
    // Each is copied while the caches have it, and its memory is free for the next.
    dims[0] = batch;
    let mut joined = Vec::with_capacity(dims.iter().product());
    for part in parts {
        joined.extend_from_slice(part.into_data().as_slice::<f32>().expect("floats, as was asked"));
    }
    Tensor::from_data(TensorData::new(joined, dims), device)
}
