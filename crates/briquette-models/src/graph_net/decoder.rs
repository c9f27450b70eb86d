//! A network of a graph as a decoder, with or without cached keys and values.

use super::{GraphNet, RunInputs, RunTokens};
use crate::cache::KeyValues;
use briquette_cpu::float::CacheType;
use briquette_graph::op::Composite;
use briquette_graph::{Op, ValueId};
use burn::tensor::{Int, Tensor};

/// A network that predicts the next token.
pub trait Decoder {
    /// Maps tokens `[batch, length]` to the head's input `[batch, length, width]`.
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// Applies the head: `[batch, length, width]` to logits `[batch, length, vocabulary]`.
    fn scores(&self, last_state: Tensor<3>) -> Tensor<3>;

    /// Returns the size of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the longest sequence in tokens; the longest target of an encoder-decoder.
    fn max_positions(&self) -> usize;

    /// Creates an empty key-value cache for one sequence.
    fn key_values(&self, kind: CacheType) -> KeyValues;

    /// Maps tokens `[batch, n]` that continue the cached sequences to the head's input `[batch, n, width]`.
    ///
    /// Appends their keys and values to the caches, one cache per sequence. A network of an ONNX model computes earlier tokens
    /// again: its time for each token grows with the sequence.
    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3>;
}

impl Decoder for GraphNet {
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.run(&RunInputs::tokens(tokens), &[self.outline.last_state]).remove(0).three()
    }

    fn scores(&self, last_state: Tensor<3>) -> Tensor<3> {
        let given = vec![(self.outline.last_state, last_state.into())];
        self.run_between(given, self.outline.output, RunTokens::default()).three()
    }

    fn vocab_size(&self) -> usize {
        self.output_width()
    }

    fn max_positions(&self) -> usize {
        self.outline.max_tokens.unwrap_or(usize::MAX)
    }

    fn key_values(&self, kind: CacheType) -> KeyValues {
        let attentions = self.graph().nodes.iter().filter_map(|node| match &node.op {
            Op::Composite(Composite::Attention(settings)) => {
                let width = node.values().nth(1).map_or(0, |(_, keys)| self.outline.shapes[keys.0][2]);
                Some([settings.kv_heads, width / settings.kv_heads])
            }
            _ => None,
        });
        KeyValues::new(kind, &self.device(), attentions).counted_by(self.first_own_attention())
    }

    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3> {
        assert_eq!(tokens.dims()[0], caches.len(), "a cache for each sequence");
        if self.outline.onnx.is_some() {
            return self.state_of_whole_sequences(&tokens, caches);
        }
        let inputs = match self.is_encoder_decoder() {
            true => RunInputs::target_after(tokens, caches),
            false => RunInputs::after(tokens, caches),
        };
        let mut given = inputs.values(self.graph());
        given.extend(self.cached_source());
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let program = self.outline.program(&names, &[self.outline.last_state]);
        let mut tokens = inputs.attention();
        tokens.caches = Some(caches);
        self.begin(given, tokens).finish(&program).remove(0).three()
    }
}

impl GraphNet {
    /// Returns the last states of new tokens `[batch, n]`, computed with all tokens before them.
    fn state_of_whole_sequences(&self, tokens: &Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3> {
        let n_new = tokens.dims()[1];
        let states = caches.iter_mut().enumerate().map(|(row, cache)| {
            let all = cache.append_tokens(tokens.clone().narrow(0, row, 1));
            let n_before = all.dims()[1] - n_new;
            self.last_state(all).narrow(1, n_before, n_new)
        });
        Tensor::cat(states.collect(), 0)
    }
}
