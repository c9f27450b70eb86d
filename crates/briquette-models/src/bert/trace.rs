//! Intermediate results of layers, and subsets of layers, for distillation.

use super::{Bert, BertEncoder, BertSelfAttention};
use crate::attention::{merge_heads, split_heads};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Int, Tensor};

/// Intermediate results of each layer for a batch.
#[derive(Debug, Clone, Default)]
pub struct BertTrace {
    /// Hidden state after each layer, `[batch, length, width]`.
    pub hidden: Vec<Tensor<3>>,
    /// Attention probabilities `[batch, heads, length, length]`; rows sum to 1.
    pub attention: Vec<Tensor<4>>,
    /// Attention values `[batch, length, width]`.
    pub values: Vec<Tensor<3>>,
}

impl BertSelfAttention {
    /// Like `forward`, and also returns the attention probabilities `a = softmax(q kᵀ / √width)` and the
    /// values.
    fn trace(&self, x: Tensor<3>, padding: Tensor<2, Bool>) -> (Tensor<3>, Tensor<4>, Tensor<3>) {
        let values = self.value.forward(x.clone());
        let split = |x| split_heads(x, self.n_heads);
        let (q, k) = (split(self.query.forward(x.clone())), split(self.key.forward(x)));
        let [batch, n_heads, length, width] = q.dims();
        let padding = padding.reshape([batch, 1, 1, length]).expand([batch, n_heads, length, length]);
        let scores = q.matmul(k.transpose()) / (width as f32).sqrt();
        let map = softmax(scores.mask_fill(padding, f32::NEG_INFINITY), 3);
        (merge_heads(map.clone().matmul(split(values.clone()))), map, values)
    }
}

impl Bert {
    /// Like [`Bert::forward`], with intermediate results of each layer. Attention probabilities and values are
    /// recorded only if `has_attention`, since the probabilities take memory quadratic in the length.
    ///
    /// # Panics
    /// See [`Bert::forward`].
    pub fn trace(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>, has_attention: bool) -> BertTrace {
        let (mut trace, mut x) = (BertTrace::default(), self.embeddings.forward(tokens));
        for layer in &self.encoder.layer {
            x = if has_attention {
                let (attended, map, values) = layer.attention.self_.trace(x.clone(), padding.clone());
                trace.attention.push(map);
                trace.values.push(values);
                layer.after_attention(attended, x)
            } else {
                layer.forward(x, padding.clone())
            };
            trace.hidden.push(x.clone());
        }
        trace
    }

    /// Returns the first layer's input `[batch, length, width]`.
    ///
    /// # Panics
    /// See [`Bert::forward`].
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.embeddings.forward(tokens)
    }

    /// Returns the output of layer `index`.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.encoder.layer[index].forward(state, padding)
    }

    /// Returns the number of layers.
    pub fn n_layers(&self) -> usize {
        self.encoder.layer.len()
    }

    /// Returns a network with the same embeddings and these layers, in this order, with their weights.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn with_layers(&self, layers: &[usize]) -> Self {
        let layer = layers.iter().map(|&layer| self.encoder.layer[layer].clone()).collect();
        Self { embeddings: self.embeddings.clone(), encoder: BertEncoder { layer } }
    }
}
