//! A network of a graph as an encoder-decoder: the source runs once, and its keys and values are cached.

use super::{AnyTensor, GraphNet, RunInputs};
use crate::attention::keep;
use crate::cache::KeyValues;
use crate::graph_net::decoder::Decoder;
use briquette_cpu::float::CacheType;
use briquette_graph::op::{Attention, Composite};
use briquette_graph::{Node, Op, ValueId};
use burn::tensor::Tensor;

impl GraphNet {
    /// Runs the encoder, and returns a cache for each source with the keys and values that the decoder attends to.
    ///
    /// Sources have no padding; all in `inputs` have one length.
    ///
    /// # Panics
    /// If the network is no encoder-decoder, or the source is missing.
    pub fn read_source(&self, inputs: &RunInputs, kind: CacheType) -> Vec<KeyValues> {
        let crossings: Vec<(usize, [ValueId; 2])> = self.crossings().collect();
        let wanted: Vec<ValueId> = crossings.iter().flat_map(|(_, values)| *values).collect();
        assert!(!wanted.is_empty(), "found no attention to an encoder");
        let mut found = self.run(inputs, &wanted).into_iter().map(AnyTensor::three);
        let mut caches = Vec::new();
        for (place, _) in crossings {
            let [k, v] = [(); 2].map(|()| found.next().expect("keys and values"));
            caches.resize_with(k.dims()[0], || self.key_values(kind));
            keep([k, v], place, &mut caches);
        }
        caches
    }

    /// Returns the head's input for each token of the target, `[batch, targets, width]`.
    ///
    /// # Panics
    /// If the source or the target is missing.
    pub fn target_state(&self, inputs: &RunInputs) -> Tensor<3> {
        self.run(inputs, &[self.outline.last_state]).remove(0).three()
    }

    /// Returns the place among all attentions of the first attention to a decoder's own tokens.
    pub(super) fn first_own_attention(&self) -> usize {
        let is_own = |settings: &Attention| settings.causal && !settings.cross;
        if !self.is_encoder_decoder() {
            return 0;
        }
        self.attentions().position(|(settings, _)| is_own(settings)).unwrap_or_default()
    }

    /// Returns values for the keys and values of the encoder's output, which a step with caches does not read.
    pub(super) fn cached_source(&self) -> Vec<(ValueId, AnyTensor)> {
        let device = self.device();
        let empty = |value| (value, Tensor::<3>::zeros([1, 1, 1], &device).into());
        self.crossings().flat_map(|(_, values)| values).map(empty).collect()
    }

    /// Returns the place, keys and values of each attention to the encoder's output.
    fn crossings(&self) -> impl Iterator<Item = (usize, [ValueId; 2])> + '_ {
        let cross = self.attentions().enumerate().filter(|(_, (settings, _))| settings.cross);
        cross.filter_map(|(place, (_, node))| {
            let mut values = node.values().map(|(_, value)| value).skip(1);
            Some((place, [values.next()?, values.next()?]))
        })
    }

    fn attentions(&self) -> impl Iterator<Item = (&Attention, &Node)> + '_ {
        self.graph().nodes.iter().filter_map(|node| match &node.op {
            Op::Composite(Composite::Attention(settings)) => Some((settings, node)),
            _ => None,
        })
    }
}
