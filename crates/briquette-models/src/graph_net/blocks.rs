//! A network of a graph as a classifier, an encoder, and a sequence of blocks.

use super::attend::no_padding;
use super::decoder::Decoder;
use super::layer::GraphLayer;
use super::program::GraphProgram;
use super::run_inputs::token_shares;
use super::{AnyTensor, GraphNet, GraphRun, RunInputs, RunTokens};
use crate::block_state::BlockState;
use crate::text::last_token;
use briquette_core::Result;
use briquette_graph::blocks::border;
use briquette_graph::fixed_values::FixedGrids;
use briquette_graph::op::Composite;
use briquette_graph::{InputSource, Op, ValueId};
use briquette_nn::NameMap;
use briquette_ops::fused::in_parts;
use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl GraphNet {
    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    ///
    /// # Panics
    /// If the network is not a classifier.
    pub fn classify(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(&RunInputs::images(images)).two()
    }

    /// Returns the last extent of the output: a hidden width, or a number of classes or tokens.
    pub fn output_width(&self) -> usize {
        self.outline.shapes[self.outline.output.0].last().copied().unwrap_or_default()
    }

    /// Returns the width of the hidden states of a text network.
    pub fn state_width(&self) -> usize {
        self.outline.shapes[self.outline.states.0].last().copied().unwrap_or_default()
    }

    /// Maps tokens and padding `[batch, length]` to hidden states `[batch, length, width]`; of a network that
    /// [gives classes alone](Self::gives_classes_alone), to its logits.
    ///
    /// # Panics
    /// If the network is not an encoder.
    pub fn encode(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        self.encode_segments(tokens, padding, None)
    }

    /// Like [`encode`](Self::encode), with the segment of each token `[batch, length]`; without segments, all are the first.
    ///
    /// # Panics
    /// If the network is not an encoder.
    pub fn encode_segments(
        &self,
        tokens: Tensor<2, Int>,
        padding: Tensor<2, Bool>,
        segments: Option<Tensor<2, Int>>,
    ) -> Tensor<3> {
        in_parts(&tokens.device(), tokens.dims(), |its| {
            let of_part = |x: &Tensor<2, Int>| x.clone().slice_dim(0, its.clone());
            let inputs = RunInputs::padded(of_part(&tokens), padding.clone().slice_dim(0, its.clone()));
            let inputs = segments.iter().fold(inputs, |inputs, segments| inputs.with_types(of_part(segments)));
            by_row(self.run(&inputs, &[self.outline.states]).remove(0))
        })
    }

    /// Returns whether the network has a layer of classes for texts or their tokens.
    pub fn classifies_text(&self) -> bool {
        self.outline.classifies_text
    }

    /// Returns whether the network has classes of texts, but no hidden states: an ONNX model.
    pub fn gives_classes_alone(&self) -> bool {
        self.outline.classifies_text && self.outline.output == self.outline.states
    }

    /// Returns whether the network has a layer of classes for each token.
    pub fn classifies_tokens(&self) -> bool {
        let has_tokens = self.outline.shapes[self.outline.output.0].len() > 2;
        self.classifies_text() && has_tokens && !self.outline.classes_of_last_token
    }

    /// Maps tokens, padding and segments `[batch, length]` to logits of classes; without segments, all are the first.
    ///
    /// Logits of texts are `[batch, 1, classes]`, and logits of tokens `[batch, length, classes]`.
    ///
    /// # Panics
    /// If the network has no layer of classes.
    pub fn classify_text(
        &self,
        tokens: Tensor<2, Int>,
        padding: Tensor<2, Bool>,
        segments: Option<Tensor<2, Int>>,
    ) -> Tensor<3> {
        in_parts(&tokens.device(), tokens.dims(), |its| {
            let (tokens, padding) =
                (tokens.clone().slice_dim(0, its.clone()), padding.clone().slice_dim(0, its.clone()));
            let inputs = RunInputs::padded(tokens, padding.clone());
            let segments = segments.clone().map(|segments| segments.slice_dim(0, its));
            let logits = by_row(self.forward(&segments.into_iter().fold(inputs, RunInputs::with_types)));
            match self.outline.classes_of_last_token {
                true => last_token(logits, padding).unsqueeze_dim(1),
                false => logits,
            }
        })
    }

    /// Maps the last hidden states of texts, and their padding if they have any, to the logits of
    /// [`classify_text`](Self::classify_text). Logits of a network that [gives classes alone](Self::gives_classes_alone) stay.
    ///
    /// # Panics
    /// If the network has no layer of classes.
    pub fn classes_of(&self, states: AnyTensor, padding: Option<Tensor<2, Bool>>) -> Tensor<3> {
        if self.gives_classes_alone() {
            return by_row(states);
        }
        let tokens = RunTokens::new(padding.clone(), Vec::new());
        let mut given = vec![(self.outline.states, states)];
        for value in self.token_shares() {
            let is_padding = padding.clone().unwrap_or_else(|| no_padding(&given[0].1.clone().three()));
            given.push((value, token_shares(&is_padding).into()));
        }
        let logits = by_row(self.run_between(given, self.outline.output, tokens));
        let n_rows = logits.dims()[1];
        match (self.outline.classes_of_last_token, padding) {
            (false, _) => logits,
            (true, Some(padding)) => last_token(logits, padding).unsqueeze_dim(1),
            (true, None) => logits.narrow(1, n_rows - 1, 1),
        }
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

    /// Returns the number of layers that a student can choose from; `None` if layers cannot be chosen.
    pub fn n_layers(&self) -> Option<usize> {
        self.graph().n_choosable_blocks()
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

    /// Returns the same network with activations rounded to fixed grids. Gradients pass straight through the rounding.
    ///
    /// # Errors
    /// Input: the network has no value with the name of a grid.
    pub fn with_rounded_activations(self, grids: &FixedGrids) -> Result<Self> {
        let graph = grids.apply(self.graph().clone())?;
        let device = self.devices().into_iter().next().unwrap_or_default();
        let (mut network, _) = Self::of_graph(graph, &device)?;
        if let Some(outline) = Arc::get_mut(&mut network.outline) {
            outline.max_tokens = self.outline.max_tokens;
        }
        let known: BTreeMap<String, GraphLayer> = self.layers.0.into_iter().collect();
        for (path, layer) in &mut network.layers.0 {
            if let Some(known) = known.get(path) {
                *layer = known.clone();
            }
        }
        Ok(Self { dropout: self.dropout, ..network })
    }

    /// Returns whether the graph names no blocks, as graphs of ONNX models do not. There are no hidden states between them then.
    pub fn has_no_blocks(&self) -> bool {
        self.graph().blocks.is_empty()
    }

    /// Returns the hidden states after each block of the graph, also where blocks share weights.
    pub(super) fn hidden_states(&self) -> Vec<ValueId> {
        let graph = self.graph();
        let after = |block| border(graph, block).outputs.last().copied().expect("a block has an output");
        graph.blocks.iter().map(after).collect()
    }

    /// Begins a run of a block up to some values, with its program.
    pub(super) fn block_run(
        &self,
        index: usize,
        state: BlockState,
        inputs: &RunInputs,
        wanted: &[ValueId],
    ) -> (GraphRun<'_>, Arc<GraphProgram>) {
        let given = self.given_of_block(index, state, inputs);
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let program = self.outline.program(&names, wanted);
        (self.begin(given, inputs.attention()), program)
    }

    /// Returns the values that a block is given.
    pub(super) fn given_of_block(
        &self,
        index: usize,
        state: BlockState,
        inputs: &RunInputs,
    ) -> Vec<(ValueId, AnyTensor)> {
        let (graph, cuts) = (self.graph(), &self.outline.cuts);
        let device = state.0.first().map_or_else(|| self.device(), AnyTensor::device);
        let mut given = inputs.values_for(graph, &graph.nodes[cuts.nodes(index)], &device);
        given.extend(cuts.state(index).iter().copied().zip(state.0));
        given
    }

    /// The program after the last block, up to the output.
    fn exit_program(&self) -> Arc<GraphProgram> {
        let cuts = &self.outline.cuts;
        let given: Vec<ValueId> = cuts.state(cuts.len()).iter().copied().chain(self.token_shares()).collect();
        self.outline.program(&given, &[self.outline.output])
    }

    /// The inputs with the shares of tokens, which a head may take.
    fn token_shares(&self) -> impl Iterator<Item = ValueId> {
        let inputs = self.graph().inputs.iter();
        inputs.filter(|input| input.source == InputSource::TokenShares).map(|input| input.value)
    }

    /// Returns the paths of the layers that nodes use.
    fn layer_paths(&self, nodes: std::ops::Range<usize>) -> BTreeSet<&str> {
        let weights = self.graph().nodes[nodes].iter().flat_map(briquette_graph::Node::weights);
        let layers = weights.filter_map(|(_, weight)| self.outline.index.of_weight(weight));
        layers.map(|layer| self.layers.0[layer].0.as_str()).collect()
    }
}

/// A sequence of blocks that can run one at a time. A network without blocks is one block.
impl GraphNet {
    /// Returns the number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.outline.cuts.len()
    }

    /// Returns the paths of a block's modules, such as `model.layers.3`; one path if all are below it.
    pub fn block_paths(&self, index: usize) -> Vec<String> {
        let cuts = &self.outline.cuts;
        let paths = self.layer_paths(cuts.nodes(index));
        let Some(name) = cuts.name(index) else { return paths.into_iter().map(str::to_string).collect() };
        let is_below = |path: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        // The first block of T5 holds the table of relative positions, which runs before the blocks.
        let is_elsewhere = |path: &str| is_below(path) && !paths.contains(path);
        if self.layers.0.iter().any(|(path, _)| is_elsewhere(path)) {
            return paths.into_iter().map(str::to_string).collect();
        }
        let others = paths.into_iter().filter(|path| !is_below(path)).map(str::to_string);
        std::iter::once(name.to_string()).chain(others).collect()
    }

    /// Returns the first block's input.
    pub fn enter(&self, inputs: &RunInputs) -> BlockState {
        BlockState(self.run(inputs, self.outline.cuts.state(0)))
    }

    /// Returns the output of a block. Of the inputs, text is needed, and images are not.
    pub fn block(&self, index: usize, state: BlockState, inputs: &RunInputs) -> BlockState {
        let wanted = self.outline.cuts.state(index + 1);
        if let Some(onnx) = &self.outline.onnx {
            return BlockState(self.run_onnx(onnx, self.given_of_block(index, state, inputs), wanted));
        }
        let (run, program) = self.block_run(index, state, inputs, wanted);
        BlockState(run.finish(&program))
    }

    /// Passes the layer inputs of a block to probes, without computing the output of its last layer.
    pub fn observe_block(&self, index: usize, state: BlockState, inputs: &RunInputs) {
        let wanted = self.outline.cuts.state(index + 1);
        if let Some(onnx) = &self.outline.onnx {
            return self.observe_onnx(onnx, self.given_of_block(index, state, inputs), wanted);
        }
        let (run, program) = self.block_run(index, state, inputs, wanted);
        run.observe(&program);
    }

    /// Maps the output of the last block to the last hidden state, or to a classifier's logits.
    pub fn leave(&self, state: BlockState) -> AnyTensor {
        let cuts = &self.outline.cuts;
        let names = cuts.state(cuts.len());
        let last = if self.graph().takes_images() { self.outline.output } else { self.outline.last_state };
        let program = self.outline.program(names, &[last]);
        self.begin(names.iter().copied().zip(state.0).collect(), RunTokens::default()).finish(&program).remove(0)
    }

    /// Returns whether the network is one block with all of its tensors, as networks of ONNX models are.
    pub fn is_one_block(&self) -> bool {
        self.outline.onnx.is_some()
    }

    /// Returns the paths of modules that are needed only after the last block: norm, head.
    pub fn exit_paths(&self) -> Vec<String> {
        let graph = self.graph();
        let program = self.exit_program();
        let layers = program.steps.iter().flat_map(|step| step.layers());
        let shown = layers.map(|layer| self.layers.0[layer].0.clone());
        let is_table = |path: &String| graph.nodes.iter().any(|node| is_embedding(node, path));
        shown.filter(|path| !is_table(path)).collect()
    }

    /// Returns whether the embedding is needed again after the last block, as a tied head.
    pub fn exit_needs_entry(&self) -> bool {
        let program = self.exit_program();
        program.steps.iter().any(|step| matches!(step.call, super::steps::GraphCall::Head(..)))
    }

    /// Returns the paths of convolutions with several channel groups, and their numbers of groups.
    pub fn channel_groups(&self) -> Vec<(String, usize)> {
        let groups = |(path, layer): &(String, GraphLayer)| match layer {
            GraphLayer::Conv2d(conv) if conv.groups > 1 => Some((path.clone(), conv.groups)),
            _ => None,
        };
        self.layers.0.iter().filter_map(groups).collect()
    }

    /// Returns the elements that a block computes for each element of its input. `None` for an empty input.
    pub fn growth(&self, index: usize) -> Option<f64> {
        let [before, computed] = self.outline.cuts.n_elements(self.graph(), &self.outline.shapes, index);
        (before > 0).then(|| computed as f64 / before as f64)
    }
}

/// Returns logits `[batch, rows, classes]`: a text has one row, or a row for each token.
fn by_row(logits: AnyTensor) -> Tensor<3> {
    match logits {
        AnyTensor::Two(texts) => texts.unsqueeze_dim(1),
        tokens => tokens.three(),
    }
}

fn is_embedding(node: &briquette_graph::Node, path: &str) -> bool {
    node.op == Op::Composite(Composite::Embedding) && node.name == path
}
