//! Encoder blocks in 8-bit codes.

use crate::compressed::host_or_cuda::ELSEWHERE;
use crate::compressed::int8_blocks::{CodedLinear, FeedForwardActivation, Int8BlockOps};
use crate::compressed::weights::HostLinear;
use crate::flex_tensor::elements;
use briquette_core::simd::active_level;
use briquette_cpu::Int8Weights;
use briquette_cpu::float::AttentionShape;
use briquette_cpu::{ActivationGrid, SelfAttention, int8_self_attention};
use briquette_cpu::{FeedForward, int8_feed_forward};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

/// Returns the bias of a layer as f32.
fn bias_of(layer: &CodedLinear) -> Option<Vec<f32>> {
    layer.bias.clone().map(|bias| bias.into_data().try_into_vec_as::<f32>().expect("a bias of floats"))
}

fn weights_of(layer: &CodedLinear) -> &dyn Int8Weights {
    match layer.weights.placed.on_host().expect(ELSEWHERE) {
        HostLinear::Int8(weights) => &**weights,
        HostLinear::Sparse(weights) => &**weights,
        HostLinear::Int4(_) | HostLinear::W4A8(_) => panic!("found int4 weights, expected int8 for blocks in codes"),
    }
}

impl Int8BlockOps for Flex {
    fn int8_self_attention(
        x: FloatTensor<Self>,
        layers: [CodedLinear; 3],
        operands: [ActivationGrid; 3],
        n_heads: usize,
        padding: Vec<bool>,
    ) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let [batch, length, _] = x.layout().shape().dims();
        let (biases, n) = (layers.each_ref().map(bias_of), layers[0].weights.n_out());
        let width = n / n_heads;
        let n_kv_heads = layers[1].weights.n_out() / width;
        let called = SelfAttention {
            layers: std::array::from_fn(|i| (weights_of(&layers[i]), biases[i].as_deref())),
            inputs: layers[0].weights.input_rounding().unwrap_or_default(),
            operands,
            shape: AttentionShape { batch, length, n_heads, n_kv_heads, width, is_causal: false },
            padding: &padding,
        };
        let mut out = vec![0.0; batch * length * n];
        int8_self_attention(active_level(), elements(&x), &called, &mut out);
        FlexTensor::from_data(TensorData::new(out, [batch, length, n]))
    }

    fn int8_feed_forward(
        x: FloatTensor<Self>,
        layers: [CodedLinear; 2],
        activation: FeedForwardActivation,
    ) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let [batch, length, _] = x.layout().shape().dims();
        let (biases, n) = (layers.each_ref().map(bias_of), layers[1].weights.n_out());
        let called = FeedForward {
            layers: std::array::from_fn(|i| (weights_of(&layers[i]), biases[i].as_deref())),
            inputs: layers.each_ref().map(|layer| layer.weights.input_rounding().unwrap_or_default()),
            activation: activation.function(),
        };
        let mut y = vec![0.0; batch * length * n];
        int8_feed_forward(active_level(), elements(&x), batch * length, &called, &mut y);
        FlexTensor::from_data(TensorData::new(y, [batch, length, n]))
    }
}
