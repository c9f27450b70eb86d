//! A network of a graph as a classifier, an encoder, a decoder, and a sequence of blocks.

use super::layer::GraphLayer;
use super::program::GraphProgram;
use super::{AnyTensor, GraphNet, GraphRun, RunInputs, RunTokens};
use crate::architecture::{Architecture, Blocks, Decoder};
use crate::block_state::BlockState;
use crate::cache::KeyValues;
use crate::layers::Linear;
use crate::low_rank::Linears;
use crate::student_config::{Smaller, keep_layers};
use briquette_core::Result;
use briquette_cpu::float::CacheType;
use briquette_graph::op::Composite;
use briquette_graph::{InputSource, Op, ValueId};
use briquette_ops::fused::in_parts;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Linears for GraphNet {
    fn linears(&mut self) -> Vec<(String, &mut Linear)> {
        fn linear((path, layer): &mut (String, GraphLayer)) -> Option<(String, &mut Linear)> {
            match layer {
                GraphLayer::Linear(linear) => Some((path.clone(), linear)),
                _ => None,
            }
        }
        self.layers.0.iter_mut().filter_map(linear).collect()
    }
}

impl Architecture for GraphNet {
    fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(&RunInputs::images(images)).two()
    }

    fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        in_parts(&tokens.device(), tokens.dims(), |its| {
            let (tokens, padding) = (tokens.clone().slice_dim(0, its.clone()), padding.clone().slice_dim(0, its));
            self.forward(&RunInputs::padded(tokens, padding)).three()
        })
    }

    fn as_decoder(&self) -> &dyn Decoder {
        self
    }

    fn as_blocks(&self) -> Option<&dyn Blocks> {
        Some(self)
    }

    fn n_choosable_layers(&self) -> Option<usize> {
        self.is_sequence().then_some(self.graph().blocks.len())
    }

    fn smaller(&self, config: &mut Map<String, Value>, how: &Smaller, device: &Device) -> Result<Option<Self>> {
        match how {
            Smaller::Layers(layers) => {
                keep_layers(config, layers, self.graph().blocks.len())?;
                self.with_blocks(layers, device).map(Some)
            }
            Smaller::Sizes(_) => Ok(None),
        }
    }
}

impl GraphNet {
    /// Returns a network with only these blocks, in this order, with their weights.
    ///
    /// # Errors
    /// Config: there is no such block, or more than one value crosses the border of a block.
    pub fn with_blocks(&self, chosen: &[usize], device: &Device) -> Result<Self> {
        let graph = self.graph().with_blocks(chosen)?;
        let (mut network, _) = Self::of_graph(graph, device)?;
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
        Ok(network)
    }

    /// Returns whether text passes through blocks one after another, with hidden states alone between two blocks.
    fn is_sequence(&self) -> bool {
        let (graph, cuts) = (self.graph(), &self.outline.cuts);
        let takes_text = graph.inputs.iter().any(|input| input.source == InputSource::TokenIds);
        let is_simple = |block| matches!(cuts.state(block), [state] if self.outline.shapes[state.0].len() == 3);
        takes_text && cuts.len() == graph.blocks.len() && (0..=cuts.len()).all(is_simple)
    }

    /// Returns the hidden states before a block; after the last block, its output.
    ///
    /// Of several values, these are computed last.
    pub(super) fn border(&self, index: usize) -> ValueId {
        *self.outline.cuts.state(index).last().expect("a block has an input")
    }

    /// Begins a run of a block, with its program.
    fn block_run(&self, index: usize, state: BlockState, inputs: &RunInputs) -> (GraphRun<'_>, Arc<GraphProgram>) {
        let (graph, cuts) = (self.graph(), &self.outline.cuts);
        let mut given = inputs.values_for(graph, &graph.nodes[cuts.nodes(index)]);
        given.extend(cuts.state(index).iter().copied().zip(state.0));
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let program = self.outline.program(&names, cuts.state(index + 1));
        (GraphRun::new(&self.layers, given, inputs.attention()), program)
    }

    /// The program after the last block, up to a value.
    fn exit_program(&self, to: ValueId) -> Arc<GraphProgram> {
        let cuts = &self.outline.cuts;
        self.outline.program(cuts.state(cuts.len()), &[to])
    }

    /// Returns the paths of the layers that nodes use.
    fn layer_paths(&self, nodes: std::ops::Range<usize>) -> BTreeSet<&str> {
        let weights = self.graph().nodes[nodes].iter().flat_map(briquette_graph::Node::weights);
        let layers = weights.filter_map(|(_, weight)| self.outline.index.of_weight(weight));
        layers.map(|layer| self.layers.0[layer].0.as_str()).collect()
    }
}

impl Blocks for GraphNet {
    fn n_blocks(&self) -> usize {
        self.outline.cuts.len()
    }

    fn block_paths(&self, index: usize) -> Vec<String> {
        let cuts = &self.outline.cuts;
        let paths = self.layer_paths(cuts.nodes(index));
        let Some(name) = cuts.name(index) else { return paths.into_iter().map(str::to_string).collect() };
        let is_below = |path: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let others = paths.into_iter().filter(|path| !is_below(path)).map(str::to_string);
        std::iter::once(name.to_string()).chain(others).collect()
    }

    fn enter(&self, inputs: &RunInputs) -> BlockState {
        BlockState(self.run(inputs, self.outline.cuts.state(0)))
    }

    fn block(&self, index: usize, state: BlockState, inputs: &RunInputs) -> BlockState {
        let (run, program) = self.block_run(index, state, inputs);
        BlockState(run.finish(&program))
    }

    fn only_show(&self, index: usize, state: BlockState, inputs: &RunInputs) {
        let (run, program) = self.block_run(index, state, inputs);
        run.only_show(&program);
    }

    fn leave(&self, state: BlockState) -> AnyTensor {
        let cuts = &self.outline.cuts;
        let given = cuts.state(cuts.len()).iter().copied().zip(state.0).collect();
        let last = if self.takes_images() { self.outline.output } else { self.outline.last_state };
        GraphRun::new(&self.layers, given, RunTokens::default()).finish(&self.exit_program(last)).remove(0)
    }

    fn exit_paths(&self) -> Vec<String> {
        let graph = self.graph();
        let program = self.exit_program(self.outline.output);
        let layers = program.steps.iter().flat_map(|step| step.layers());
        let shown = layers.map(|layer| self.layers.0[layer].0.clone());
        let is_table = |path: &String| graph.nodes.iter().any(|node| is_embedding(node, path));
        shown.filter(|path| !is_table(path)).collect()
    }

    fn exit_needs_entry(&self) -> bool {
        let program = self.exit_program(self.outline.output);
        program.steps.iter().any(|step| matches!(step.call, super::steps::GraphCall::Head(..)))
    }

    fn grouped_paths(&self) -> Vec<String> {
        let is_grouped = |layer: &GraphLayer| matches!(layer, GraphLayer::Conv2d(conv) if conv.groups > 1);
        self.layers.0.iter().filter(|(_, layer)| is_grouped(layer)).map(|(path, _)| path.clone()).collect()
    }

    fn growth(&self, index: usize) -> Option<f64> {
        let [before, computed] = self.outline.cuts.n_elements(self.graph(), &self.outline.shapes, index);
        (before > 0).then(|| computed as f64 / before as f64)
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
        super::GraphRun::new(&self.layers, given, tokens).finish(&program).remove(0).three()
    }
}
