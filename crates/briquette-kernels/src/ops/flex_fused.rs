//! The fused operations on the CPU.

use super::fused::FusedOps;
use crate::float::{self, AttentionShape};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

/// The elements of an f32 tensor that is contiguous.
fn elements(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("a contiguous tensor of f32")
}

/// Changes the elements in place, where nobody else has the tensor.
fn change(x: FlexTensor, f: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut data = x.into_data();
    f(data.as_mut_slice().expect("a tensor of f32"));
    FlexTensor::from_data(data)
}

impl FusedOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        change(x, float::gelu)
    }

    fn fused_add_norm(
        x: FloatTensor<Self>,
        shortcut: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let [shortcut, gamma, beta] = [shortcut, gamma, beta].map(|tensor| tensor.to_contiguous());
        change(x, |x| float::add_norm(x, elements(&shortcut), elements(&gamma), elements(&beta), epsilon as f32))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        n_heads: usize,
        padding: Vec<bool>,
    ) -> FloatTensor<Self> {
        let [q, k, v] = [q, k, v].map(|tensor| tensor.to_contiguous());
        let [batch, length, all] = q.layout().shape().dims();
        let shape = AttentionShape { batch, length, n_heads, width: all / n_heads };
        let mut out = vec![0.0; shape.n_elements()];
        float::attention(shape, elements(&q), elements(&k), elements(&v), &padding, &mut out);
        FlexTensor::from_data(TensorData::new(out, [batch, length, all]))
    }
}
