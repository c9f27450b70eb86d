//! A network of a graph as a classifier, an encoder, a decoder, and a sequence of blocks.

use super::{GraphNet, RunInputs};
use crate::cache::KeyValues;
use briquette_core::Result;
use briquette_cpu::float::CacheType;
use briquette_graph::blocks::border;
use briquette_graph::op::Composite;
use briquette_graph::{Block, InputSource, Op, ValueId};
use briquette_nn::NameMap;
use briquette_ops::fused::in_parts;
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};

/// A network whose transformer blocks can run one at a time.
pub trait Blocks {
    /// Returns the number of blocks.
    fn n_blocks(&self) -> usize;

    /// Returns the path of a block, such as `model.layers.3`.
    fn block_path(&self, index: usize) -> String;

    /// Maps tokens `[batch, length]` to the first block's input `[batch, length, width]`; `padding` is true at padding
    /// tokens.
    fn enter(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3>;

    /// Returns the output of a block; `padding` is true at padding tokens.
    fn block(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3>;

    /// Passes the layer inputs of a block to probes. The output of the last layer need not be computed.
    fn only_show(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) {
        drop(self.block(index, state, padding));
    }

    /// Maps the output of the last block to the last hidden state.
    fn leave(&self, state: Tensor<3>) -> Tensor<3>;

    /// Returns the paths of modules that are needed only after the last block: norm, head.
    fn exit_paths(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether the embedding is needed again after the last block, as a tied head.
    fn exit_needs_entry(&self) -> bool {
        false
    }
}

/// A network that predicts the next token.
pub trait Decoder {
    /// Maps tokens `[batch, length]` to the head's input `[batch, length, width]`.
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3>;

    /// Applies the head: `[batch, length, width]` to logits `[batch, length, vocabulary]`.
    fn scores(&self, last_state: Tensor<3>) -> Tensor<3>;

    /// Returns the size of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Returns the longest sequence in tokens.
    fn max_positions(&self) -> usize;

    /// Creates an empty key-value cache for one sequence.
    fn key_values(&self, kind: CacheType) -> KeyValues;

    /// Maps tokens `[batch, n]` that continue the cached sequences to the head's input `[batch, n, width]`.
    ///
    /// Appends their keys and values to the caches, one cache per sequence.
    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3>;
}

impl GraphNet {
    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    ///
    /// # Panics
    /// If the network is not a classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(&RunInputs::images(images)).two()
    }

    /// Maps tokens and padding `[batch, length]` to hidden states `[batch, length, width]`.
    ///
    /// # Panics
    /// If the network is not an encoder.
    pub fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        in_parts(&tokens.device(), tokens.dims(), |its| {
            let (tokens, padding) = (tokens.clone().slice_dim(0, its.clone()), padding.clone().slice_dim(0, its));
            self.forward(&RunInputs::padded(tokens, padding)).three()
        })
    }

    /// Maps tokens `[batch, length]` to logits of the next tokens `[batch, length, vocabulary]`.
    ///
    /// # Panics
    /// If the network is not a decoder.
    pub fn decode(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.scores(self.last_state(tokens))
    }

    /// Returns the network as a decoder.
    pub fn as_decoder(&self) -> &dyn Decoder {
        self
    }

    /// Returns the network as a sequence of blocks, if it is one.
    pub fn as_blocks(&self) -> Option<&dyn Blocks> {
        self.is_sequence().then_some(self)
    }

    /// Returns the number of layers that a student can choose from; `None` if layers cannot be chosen.
    pub fn n_layers(&self) -> Option<usize> {
        self.is_sequence().then_some(self.graph().blocks.len())
    }

    /// Returns the device of the parameters.
    pub fn device(&self) -> Device {
        self.devices().into_iter().next().unwrap_or_default()
    }
}

impl GraphNet {
    /// Returns a network with only these blocks, in this order, with their weights, and its name map.
    ///
    /// # Errors
    /// Config: there is no such block, or more than one value crosses the border of a block.
    pub fn with_blocks(&self, chosen: &[usize], device: &Device) -> Result<(Self, NameMap)> {
        let graph = self.graph().with_blocks(chosen)?;
        let (mut network, names) = Self::of_graph(graph, device)?;
        network.dropout = self.dropout.clone();
        if let Some(outline) = std::sync::Arc::get_mut(&mut network.outline) {
            outline.max_tokens = self.outline.max_tokens;
        }
        let blocks = &self.graph().blocks;
        let old_path = |path: &str| {
            let at = blocks.iter().position(|block| path.starts_with(&format!("{}.", block.name)));
            match at.and_then(|place| Some((blocks[place].name.as_str(), chosen.get(place)?))) {
                Some((new, old)) => format!("{}{}", blocks[*old].name, &path[new.len()..]),
                None => path.to_string(),
            }
        };
        for (path, layer) in &mut network.layers.0 {
            let old = old_path(path);
            if let Some((_, known)) = self.layers.0.iter().find(|(path, _)| *path == old) {
                *layer = known.clone();
            }
        }
        Ok((network, names))
    }

    /// Returns whether text passes through blocks one after another, with one value between two blocks.
    fn is_sequence(&self) -> bool {
        let graph = self.graph();
        let takes_text = graph.inputs.iter().any(|input| input.source == InputSource::TokenIds);
        let is_simple = |block: &Block| {
            let border = border(graph, block);
            border.inputs.len() == 1 && border.outputs.len() == 1
        };
        takes_text && !graph.blocks.is_empty() && graph.blocks.iter().all(is_simple)
    }

    /// Returns the value before a block; after the last block, its output.
    pub(super) fn border(&self, index: usize) -> ValueId {
        let graph = self.graph();
        let block = match graph.blocks.get(index) {
            Some(block) => block,
            None => return self.after_blocks(),
        };
        border(graph, block).inputs.first().copied().expect("a block has an input")
    }

    fn after_blocks(&self) -> ValueId {
        let graph = self.graph();
        let last = graph.blocks.last().expect("a graph with blocks");
        border(graph, last).outputs.first().copied().expect("a block has an output")
    }
}

impl Blocks for GraphNet {
    fn n_blocks(&self) -> usize {
        self.graph().blocks.len()
    }

    fn block_path(&self, index: usize) -> String {
        self.graph().blocks[index].name.clone()
    }

    fn enter(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.run(&RunInputs::padded(tokens, padding), &[self.border(0)]).remove(0).three()
    }

    fn block(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let border = [self.border(index), self.border(index + 1)];
        let tokens = super::RunTokens::new(Some(padding), (0..state.dims()[1]).collect());
        self.run_between(border, state.into(), tokens).three()
    }

    fn only_show(&self, index: usize, state: Tensor<3>, padding: Tensor<2, Bool>) {
        let (from, to) = (self.border(index), self.border(index + 1));
        let tokens = super::RunTokens::new(Some(padding), (0..state.dims()[1]).collect());
        let program = self.outline.program(&[from], &[to]);
        super::GraphRun::new(self, vec![(from, state.into())], tokens).only_show(&program);
    }

    fn leave(&self, state: Tensor<3>) -> Tensor<3> {
        let tokens = super::RunTokens::default();
        self.run_between([self.after_blocks(), self.outline.last_state], state.into(), tokens).three()
    }

    fn exit_paths(&self) -> Vec<String> {
        let graph = self.graph();
        let program = self.outline.program(&[self.after_blocks()], &[self.outline.output]);
        let layers = program.steps.iter().flat_map(|step| step.call.layers());
        let shown = layers.map(|layer| self.layers.0[layer].0.clone());
        let is_table = |path: &String| graph.nodes.iter().any(|node| is_embedding(node, path));
        shown.filter(|path| !is_table(path)).collect()
    }

    fn exit_needs_entry(&self) -> bool {
        let program = self.outline.program(&[self.after_blocks()], &[self.outline.output]);
        program.steps.iter().any(|step| matches!(step.call, super::steps::GraphCall::Head(..)))
    }
}

fn is_embedding(node: &briquette_graph::Node, path: &str) -> bool {
    node.op == Op::Composite(Composite::Embedding) && node.name == path
}

impl Decoder for GraphNet {
    fn last_state(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.run(&RunInputs::tokens(tokens), &[self.outline.last_state]).remove(0).three()
    }

    fn scores(&self, last_state: Tensor<3>) -> Tensor<3> {
        let between = [self.outline.last_state, self.outline.output];
        self.run_between(between, last_state.into(), super::RunTokens::default()).three()
    }

    fn vocab_size(&self) -> usize {
        self.outline.shapes[self.outline.output.0].last().copied().unwrap_or_default()
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
        KeyValues::new(kind, attentions)
    }

    fn next_state(&self, tokens: Tensor<2, Int>, caches: &mut [KeyValues]) -> Tensor<3> {
        assert_eq!(tokens.dims()[0], caches.len(), "a cache for each sequence");
        let inputs = RunInputs::after(tokens, caches);
        let given = inputs.values(self.graph());
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let program = self.outline.program(&names, &[self.outline.last_state]);
        let mut tokens = inputs.attention();
        tokens.caches = Some(caches);
        super::GraphRun::new(self, given, tokens).finish(&program).remove(0).three()
    }
}
