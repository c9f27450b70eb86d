//! The CPU.

use crate::flex_tensor::{change, elements};
use crate::fused::ops::{AttentionHeads, FusedGrads, FusedOps};
use briquette_cpu::float::{self, ActivationFunction, AttentionShape, RotaryTable};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Shape, TensorData};
use std::sync::Arc;

fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Returns the attention shape of these queries and keys.
fn attention_shape(q: &FlexTensor, k: &FlexTensor, heads: &AttentionHeads) -> AttentionShape {
    let ([batch, length, all], [.., of_kv]) = (q.layout().shape().dims(), k.layout().shape().dims::<3>());
    let width = all / heads.n;
    AttentionShape { batch, length, n_heads: heads.n, n_kv_heads: of_kv / width, width, is_causal: heads.is_causal }
}

impl FusedOps for Flex {
    fn fused_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        change(x, float::gelu)
    }

    fn fused_activation(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self> {
        change(x, |x| float::activate(function, x))
    }

    fn fused_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let [gamma, beta] = [gamma, beta].map(|tensor| tensor.to_contiguous());
        change(x, |x| float::add_norm(x, &[], elements(&gamma), elements(&beta), epsilon as f32))
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

    fn fused_rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self> {
        let gamma = gamma.to_contiguous();
        change(x, |x| float::rms_norm(x, elements(&gamma), epsilon as f32))
    }

    fn fused_swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let up = up.to_contiguous();
        change(gate, |gate| float::swiglu(gate, elements(&up)))
    }

    fn fused_rotate(x: FloatTensor<Self>, n_heads: usize, turns: Arc<RotaryTable>) -> FloatTensor<Self> {
        change(x, |x| float::rotate(x, n_heads, &turns))
    }

    fn fused_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        heads: AttentionHeads,
    ) -> FloatTensor<Self> {
        let [q, k, v] = [q, k, v].map(|tensor| tensor.to_contiguous());
        let shape = attention_shape(&q, &k, &heads);
        let mut out = vec![0.0; shape.n_elements()];
        float::attention(shape, elements(&q), elements(&k), elements(&v), &heads.padding, &mut out);
        tensor(out, q.layout().shape().clone())
    }
}

impl FusedGrads for Flex {
    fn gelu_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        change(dy, |dy| float::gelu_grad(elements(&x), dy))
    }

    fn activation_grad(x: FloatTensor<Self>, function: ActivationFunction, dy: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        change(dy, |dy| float::activate_grad(function, elements(&x), dy))
    }

    fn norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3] {
        let ([x, gamma], mut sums) = ([x, gamma].map(|tensor| tensor.to_contiguous()), [Vec::new(), Vec::new()]);
        let dx = change(dy, |dy| sums = float::norm_grad(elements(&x), elements(&gamma), epsilon as f32, dy));
        let [dgamma, dbeta] = sums.map(|sums| tensor(sums, gamma.layout().shape().clone()));
        [dx, dgamma, dbeta]
    }

    fn rms_norm_grads(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        let ([x, gamma], mut sums) = ([x, gamma].map(|tensor| tensor.to_contiguous()), Vec::new());
        let dx = change(dy, |dy| sums = float::rms_norm_grad(elements(&x), elements(&gamma), epsilon as f32, dy));
        [dx, tensor(sums, gamma.layout().shape().clone())]
    }

    fn swiglu_grads(gate: FloatTensor<Self>, up: FloatTensor<Self>, dy: FloatTensor<Self>) -> [FloatTensor<Self>; 2] {
        let [gate, up] = [gate, up].map(|tensor| tensor.to_contiguous());
        let shape = up.layout().shape().clone();
        let mut dup = vec![0.0; shape.num_elements()];
        let dgate = change(dy, |dy| float::swiglu_grad(elements(&gate), elements(&up), dy, &mut dup));
        [dgate, tensor(dup, shape)]
    }

    fn attention_grads(
        qkv: [FloatTensor<Self>; 3],
        heads: &AttentionHeads,
        dy: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3] {
        let ([q, k, v], dy) = (qkv.map(|tensor| tensor.to_contiguous()), dy.to_contiguous());
        let shapes = [&q, &k, &v].map(|tensor| tensor.layout().shape().clone());
        let mut grads = shapes.each_ref().map(|shape| vec![0.0; shape.num_elements()]);
        let all = [&q, &k, &v].map(elements);
        let into = grads.each_mut().map(Vec::as_mut_slice);
        float::attention_grad(attention_shape(&q, &k, heads), all, &heads.padding, elements(&dy), into);
        let [dq, dk, dv] = grads;
        let [of_q, of_k, of_v] = shapes;
        [tensor(dq, of_q), tensor(dk, of_k), tensor(dv, of_v)]
    }
}
