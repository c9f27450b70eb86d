//! The fused operations.

use super::tensor::{change, elements};
use crate::float::{self, AttentionShape};
use crate::ops::fused::{AttentionHeads, FusedOps, Norm};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

impl FusedOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        change(x, float::gelu)
    }

    fn fused_add_norm(x: FloatTensor<Self>, shortcut: FloatTensor<Self>, norm: Norm) -> FloatTensor<Self> {
        let shortcut = shortcut.to_contiguous();
        change(x, |x| float::add_norm(x, elements(&shortcut), &norm.gamma, &norm.beta, norm.epsilon as f32))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self> {
        let [q, k, v] = [q, k, v].map(|tensor| tensor.to_contiguous());
        let [batch, length, all] = q.layout().shape().dims();
        let (width, [.., of_kv]) = (all / heads.n, k.layout().shape().dims::<3>());
        let (n_heads, n_kv_heads, is_causal) = (heads.n, of_kv / width, heads.is_causal);
        let shape = AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal };
        let mut out = vec![0.0; shape.n_elements()];
        float::attention(shape, elements(&q), elements(&k), elements(&v), &heads.padding, &mut out);
        FlexTensor::from_data(TensorData::new(out, [batch, length, all]))
    }
}
