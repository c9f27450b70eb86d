//! Llama with a key-value cache.

use super::{Llama, LlamaAttention, LlamaLayer};
use crate::attention::attend_to_kept;
use crate::cache::KeyValues;
use crate::rope::Rotation;
use briquette_cpu::float::{CacheType, ScoreRule};
use burn::tensor::{Int, Tensor};

impl LlamaAttention {
    /// Like [`forward`](Self::forward), for tokens that continue the cached sequences, one cache per sequence.
    fn follow(&self, x: Tensor<3>, rotation: &Rotation, layer: usize, caches: &mut [KeyValues]) -> Tensor<3> {
        let heads = [self.n_heads, self.n_kv_heads];
        self.o_proj.forward(attend_to_kept(self.projected(x, rotation), heads, ScoreRule::default(), layer, caches))
    }
}

impl LlamaLayer {
    fn follow(&self, x: Tensor<3>, rotation: &Rotation, layer: usize, caches: &mut [KeyValues]) -> Tensor<3> {
        let normed = crate::layers::normed(&self.input_layernorm, x.clone());
        self.fed_forward(x + self.self_attn.follow(normed, rotation, layer, caches))
    }
}

impl Llama {
    /// Creates an empty key-value cache for one sequence.
    pub fn key_values(&self, kind: CacheType) -> KeyValues {
        let of_layer = |layer: &LlamaLayer| {
            let attention = &layer.self_attn;
            [attention.n_kv_heads, attention.k_proj.dims()[1] / attention.n_kv_heads]
        };
        KeyValues::new(kind, self.model.layers.iter().map(of_layer))
    }

    /// Maps tokens `[batch, n]` that continue the cached sequences to the head's input `[batch, n, width]`.
    ///
    /// Appends their keys and values to the caches. Cached attention runs on the CPU, whatever the model's
    /// device.
    ///
    /// # Panics
    /// If the numbers of caches and sequences differ, or a token exceeds the vocabulary.
    pub fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3> {
        let [batch, n] = tokens.dims();
        assert_eq!(batch, caches.len(), "a cache for each sequence");
        let positions = caches.iter().map(KeyValues::n_tokens).flat_map(|first| first..first + n);
        let rotation = Rotation::new(&self.inverse_frequencies, positions);
        let mut state = self.embed(tokens);
        for (index, layer) in self.model.layers.iter().enumerate() {
            state = layer.follow(state, &rotation, index, caches);
        }
        self.normed(state)
    }
}
