//! The CPU.

use super::fake_quantize::{FakeQuantization, FakeQuantizeGrads, FakeQuantizeOps};
use crate::flex_tensor::{change, elements};
use crate::fused::masked::fake_quantize::{fake_quantize, keep_grads, learned_grads};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::tensor::{Bool, BoolStore, DType, Tensor, TensorData};

/// Calls `f` with the elements of an f32 tensor.
pub(super) fn floats<const D: usize, R>(tensor: Tensor<D>, f: impl FnOnce(&[f32]) -> R) -> Option<R> {
    let tensor = tensor.try_into_primitive::<Flex>().ok()?.to_contiguous();
    Some(f(elements(&tensor)))
}

/// Calls `f` with a byte for each boolean.
pub(super) fn bools<R>(tensor: Tensor<1, Bool>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let tensor = tensor.try_into_primitive::<Flex>().ok()?.to_contiguous();
    matches!(tensor.dtype(), DType::Bool(BoolStore::Native | BoolStore::U8)).then(|| f(elements(&tensor)))
}

/// Returns the bytes of a mask; empty without a mask.
fn bytes(dropped: &FlexTensor, has_mask: bool) -> &[u8] {
    if has_mask { elements(dropped) } else { &[] }
}

impl FakeQuantizeOps for Flex {
    fn fake_quantize_weights(
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        zeros: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> FloatTensor<Self> {
        let [weights, dropped, scales, zeros] = [weights, dropped, scales, zeros].map(|tensor| tensor.to_contiguous());
        let grid = how.grid.as_ref().map(|grid| {
            let zeros: &[f32] = if grid.grid.is_asymmetric() { elements(&zeros) } else { &[] };
            (grid, elements::<f32>(&scales), zeros)
        });
        let shape = weights.layout().shape().clone();
        let out = fake_quantize(elements(&weights), bytes(&dropped, how.has_mask), grid);
        FlexTensor::from_data(TensorData::new(out, shape))
    }
}

impl FakeQuantizeGrads for Flex {
    fn kept_grad(dy: FloatTensor<Self>, dropped: BoolTensor<Self>) -> FloatTensor<Self> {
        let dropped = dropped.to_contiguous();
        change(dy, |dy| keep_grads(dy, elements(&dropped)))
    }

    fn learned_grads(
        dy: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        dropped: BoolTensor<Self>,
        scales: FloatTensor<Self>,
        how: FakeQuantization,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [weights, dropped, scales] = [weights, dropped, scales].map(|tensor| tensor.to_contiguous());
        let shape = scales.layout().shape().clone();
        let form = how.grid.expect("learned scales have a grid");
        let (dropped, mut of_scales) = (bytes(&dropped, how.has_mask), Vec::new());
        let dy = change(dy, |dy| {
            of_scales = learned_grads(&form, elements(&weights), dropped, elements(&scales), dy);
        });
        (dy, FlexTensor::from_data(TensorData::new(of_scales, shape)))
    }
}
