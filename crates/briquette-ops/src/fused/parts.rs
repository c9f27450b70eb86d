//! Running a network on parts of a batch.

use crate::fused::device::rows_at_once;
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::ops::Range;

/// Runs `forward` on parts of a batch and joins the results along the first dimension.
///
/// The batch has `batch` independent sequences of `length` tokens. A part has as many sequences as stay in the
/// caches.
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
    let Some(first) = parts.peek() else { return forward(0..0) };
    let (mut dims, device) = (first.dims(), first.device());
    if first.dtype() != DType::F32 || device.is_autodiff() {
        return Tensor::cat(parts.collect(), 0);
    }
    // Each part is copied while it is in the caches, and its memory is reused for the next.
    dims[0] = batch;
    let mut joined = Vec::with_capacity(dims.iter().product());
    for part in parts {
        joined.extend_from_slice(part.into_data().as_slice::<f32>().expect("f32 elements, as checked above"));
    }
    Tensor::from_data(TensorData::new(joined, dims), &device)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn parts_join_to_the_whole_batch_with_gradients() {
        let plain = Device::flex();
        // Tokens have no gradients, but weights may have.
        for (device, n) in [(plain.clone(), 5), (plain.clone(), 3000), (plain.clone().autodiff(), 3000)] {
            let x = Tensor::<2>::ones([n, 3], &device) * Tensor::arange(0..n as i64, &device).float().reshape([n, 1]);
            let w = Tensor::<1>::from_floats([2.0], &device);
            let w = if device.is_autodiff() { w.require_grad() } else { w };
            let mut n_parts = 0;
            let y = in_parts(&plain, [n, 1], |range| {
                n_parts += 1;
                x.clone().slice_dim(0, range) * w.clone().reshape([1, 1])
            });
            assert_eq!(n_parts > 1, n > 128 * rayon::current_num_threads(), "{n}");
            assert_eq!(y.clone().into_data(), (x * w.clone().reshape([1, 1])).into_data());
            if device.is_autodiff() {
                let sum = w.grad(&y.sum().backward()).unwrap().into_data().try_to_vec::<f32>().unwrap();
                assert!((sum[0] / (3.0 * 2999.0 * 1500.0) - 1.0).abs() < 1e-4, "{sum:?}");
            }
        }
    }
}
