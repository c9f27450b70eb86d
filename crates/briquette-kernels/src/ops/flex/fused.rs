//! The fused operations.

use super::tensor::{change, elements};
use crate::float_product;
use crate::ops::fused::{AttentionHeads, FusedOps, Norm};
use briquette_core::float::{self, AttentionShape, Turns};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;
use std::sync::Arc;

impl FusedOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        change(x, float::gelu)
    }

    fn fused_add_norm(x: FloatTensor<Self>, shortcut: FloatTensor<Self>, norm: Norm) -> FloatTensor<Self> {
        let shortcut = shortcut.to_contiguous();
        change(x, |x| float::add_norm(x, elements(&shortcut), &norm.gamma, &norm.beta, norm.epsilon as f32))
    }

    fn fused_rms_norm(x: FloatTensor<Self>, gamma: Vec<f32>, epsilon: f64) -> FloatTensor<Self> {
        change(x, |x| float::rms_norm(x, &gamma, epsilon as f32))
    }

    fn fused_product(x: FloatTensor<Self>, weights: FloatTensor<Self>) -> FloatTensor<Self> {
        let [x, weights] = [x, weights].map(|tensor| tensor.to_contiguous());
        let ([batch, length, n_in], [n_out, _]) = (x.layout().shape().dims(), weights.layout().shape().dims());
        let mut y = vec![0.0; batch * length * n_out];
        float_product(elements(&x), batch * length, elements(&weights), [n_out, n_in], &mut y);
        FlexTensor::from_data(TensorData::new(y, [batch, length, n_out]))
    }

    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let up = up.to_contiguous();
        change(gate, |gate| float::swiglu(gate, elements(&up)))
    }

    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<Turns>) -> FloatTensor<Self> {
        change(x, |x| float::rotate(x, n_heads, &turns))
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
