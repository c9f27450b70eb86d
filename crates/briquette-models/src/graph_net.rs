//! One burn module for any graph: it holds the layers and interprets the operations.
//!
//! [`GraphNet`] runs the graph of a checkpoint on every device, with gradients, and on integer codes where its layers
//! hold them. Parameters have the names of the checkpoint. A run computes any values of the graph from any others, so
//! blocks, heads and intermediate values need no code in a family. Each value is freed after its last use.
//!
//! ```
//! use briquette_models::graph_net::{GraphNet, RunInputs};
//! use burn::tensor::{Device, Tensor};
//! # let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
//!
//! let device = Device::default();
//! let network = GraphNet::from_checkpoint(&fixtures.join("digits"), &device)?;
//! let logits = network.forward(&RunInputs::images(Tensor::zeros([2, 1, 8, 8], &device))).two();
//! assert_eq!(logits.dims(), [2, 10]);
//! # Ok::<(), briquette_core::Error>(())
//! ```

mod attend;
mod blank;
mod block_end;
mod blocks;
mod checked_nodes;
mod decoder;
mod dropout;
mod encoder_decoder;
mod exact;
mod example;
mod experts;
mod fixed;
mod foreign;
mod functional;
mod functions;
mod fuse;
mod graph_source;
mod head;
mod headers;
mod input;
mod layer;
mod layer_kinds;
mod linear_groups;
mod named_layers;
mod observe;
mod onnx;
mod onnx_input;
mod onnx_programs;
mod parts;
mod preprocessor;
mod primitives;
mod program;
mod recurrent;
mod run;
mod run_inputs;
mod run_size;
mod sized;
mod slots;
mod steps;
mod trace;
mod value;
mod weights;

pub use block_end::{BlockEnd, EndValues};
pub use decoder::Decoder;
pub(crate) use headers::{GraphHeaders, config_beside, config_of};
pub(crate) use input::input;
pub use linear_groups::{GroupValues, LinearGroup};
pub(crate) use onnx_input::{onnx_input, onnx_task};
pub use run_inputs::RunInputs;
pub use run_size::RunSizes;
pub use trace::NetworkTrace;
pub use value::{AnyTensor, ValueObserver};

use crate::layers::Linear;
use attend::{AttentionTap, RunTokens};
use briquette_core::{Error, Result};
use briquette_graph::{Graph, InputSource, ValueId};
use burn::module::{Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;
use dropout::GraphDropout;
use graph_source::GraphSource;
use layer::GraphLayer;
use named_layers::NamedLayers;
use onnx_programs::OnnxPrograms;
use parts::BlockCuts;
use program::GraphProgram;
use run::GraphRun;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use weights::LayerIndex;

/// A network that interprets a graph.
#[derive(Debug, Clone)]
pub struct GraphNet {
    layers: NamedLayers,
    dropout: GraphDropout,
    outline: Arc<GraphOutline>,
}

/// A graph, and what running it needs beside weights.
#[derive(Debug)]
struct GraphOutline {
    graph: Graph,
    /// The shape of each value for an example.
    shapes: Vec<Vec<usize>>,
    index: LayerIndex,
    /// The values to which the dropout of hidden states applies.
    dropped: BTreeSet<ValueId>,
    /// The value that the task needs: hidden states, or logits.
    output: ValueId,
    /// The hidden states of text networks; the output of others, and of those without a layer of classes.
    states: ValueId,
    /// Whether the output has the classes of texts, or of their tokens.
    classifies_text: bool,
    /// Whether the classes of a text are those of its last token.
    classes_of_last_token: bool,
    /// The value that the task's head maps to logits; the output itself without a head.
    last_state: ValueId,
    /// The parts that run one after another.
    cuts: BlockCuts,
    /// The longest text in tokens.
    max_tokens: Option<usize>,
    /// Builds the graphs of other batches; only the network of a family has it.
    source: Option<GraphSource>,
    /// The ONNX model that the graph comes from; it has a graph for each shape of its inputs.
    onnx: Option<OnnxPrograms>,
    /// Programs so far, by given and wanted values.
    programs: Mutex<BTreeMap<[Vec<ValueId>; 2], Arc<GraphProgram>>>,
}

impl GraphOutline {
    fn program(&self, given: &[ValueId], wanted: &[ValueId]) -> Arc<GraphProgram> {
        // A poisoned lock only means that another thread panicked elsewhere.
        let mut known = self.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let make =
            || Arc::new(GraphProgram::new(&self.graph, &self.shapes, &self.index, &self.dropped, [given, wanted]));
        known.entry([given.to_vec(), wanted.to_vec()]).or_insert_with(make).clone()
    }

    /// Returns whether the network has the layers that compute a value.
    fn has_layers_of(&self, value: ValueId) -> bool {
        let needed = program::needed_nodes(&self.graph, &[], &[value]);
        let mut weights = needed.iter().flat_map(|&node| self.graph.nodes[node].weights());
        weights.all(|(_, weight)| self.index.of_weight(weight).is_some())
    }

    fn value_named(&self, name: &str) -> Option<ValueId> {
        self.graph.values.iter().position(|value| value == name).map(ValueId)
    }
}

impl GraphNet {
    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.outline.graph
    }

    /// Returns every linear layer with its path.
    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = (&str, &mut Linear)> {
        self.layers.0.iter_mut().filter_map(|(path, layer)| match layer {
            GraphLayer::Linear(linear) => Some((path.as_str(), linear)),
            _ => None,
        })
    }

    /// Returns whether the network has the layers that compute a value.
    pub fn computes(&self, value: ValueId) -> bool {
        self.outline.has_layers_of(value)
    }

    /// Computes hidden states of encoders, or logits of decoders and classifiers.
    ///
    /// # Panics
    /// If an input of the graph is missing or has another shape.
    pub fn forward(&self, inputs: &RunInputs) -> AnyTensor {
        let output = self.outline.output;
        self.run(inputs, &[output]).remove(0)
    }

    /// Computes any values by name, such as `encoder.layer.3.attention.self.query`.
    ///
    /// # Errors
    /// Config: the graph has no such value, or the value belongs to an output that the network does not compute.
    ///
    /// # Panics
    /// See [`forward`](Self::forward).
    pub fn tap(&self, inputs: &RunInputs, names: &[&str]) -> Result<Vec<AnyTensor>> {
        let find = |name: &&str| {
            let message = || Error::config(format!("the graph of {} has no value {name:?}", self.graph().family));
            self.outline.value_named(name).ok_or_else(message)
        };
        let wanted = names.iter().map(find).collect::<Result<Vec<_>>>()?;
        for (value, name) in wanted.iter().zip(names) {
            if !self.outline.has_layers_of(*value) {
                let message = format!("{name} needs weights of an output that this network does not compute");
                return Err(Error::config(message));
            }
        }
        Ok(self.run(inputs, &wanted))
    }

    /// Returns the fused steps of a whole run, one line each.
    pub fn lowered(&self) -> Vec<String> {
        let given: Vec<ValueId> = self.graph().inputs.iter().map(|input| input.value).collect();
        let program = self.outline.program(&given, &[self.outline.output]);
        program.steps.iter().map(|step| self.described(step)).collect()
    }

    /// Returns whether the network predicts a target from a source.
    pub fn is_encoder_decoder(&self) -> bool {
        self.graph().inputs.iter().any(|input| input.source == InputSource::TargetIds)
    }

    fn described(&self, step: &steps::GraphStep) -> String {
        let layers = step.call.layers().into_iter().map(|layer| self.layers.0[layer].0.as_str());
        let layers = layers.collect::<Vec<_>>().join(", ");
        format!("{} {layers}", step.call.name()).trim_end().to_string()
    }

    /// Begins a run from given values.
    fn begin<'a>(&'a self, given: Vec<(ValueId, AnyTensor)>, tokens: RunTokens<'a>) -> GraphRun<'a> {
        GraphRun::new(&self.layers, &self.dropout, given, tokens)
    }

    /// Computes these values from the inputs of the graph.
    fn run(&self, inputs: &RunInputs, wanted: &[ValueId]) -> Vec<AnyTensor> {
        if let Some(onnx) = &self.outline.onnx {
            return self.run_onnx(onnx, inputs.values(self.graph()), wanted);
        }
        let (run, program) = self.begin_whole(inputs, wanted);
        run.finish(&program)
    }

    /// Computes these values, and returns what each attention layer before them computed.
    fn run_tapping(&self, inputs: &RunInputs, wanted: &[ValueId]) -> (Vec<AnyTensor>, Vec<AttentionTap>) {
        let (run, program) = self.begin_whole(inputs, wanted);
        run.finish_tapping(&program)
    }

    /// Begins a run from the inputs of the graph, with its program.
    fn begin_whole<'a>(&'a self, inputs: &RunInputs, wanted: &[ValueId]) -> (GraphRun<'a>, Arc<GraphProgram>) {
        let given = inputs.values(self.graph());
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        (self.begin(given, inputs.attention()), self.outline.program(&names, wanted))
    }

    /// Computes a value from others.
    fn run_between(&self, mut given: Vec<(ValueId, AnyTensor)>, to: ValueId, tokens: RunTokens) -> AnyTensor {
        if let Some(found) = given.iter().position(|(value, _)| *value == to) {
            return given.swap_remove(found).1;
        }
        let names: Vec<ValueId> = given.iter().map(|(value, _)| *value).collect();
        let program = self.outline.program(&names, &[to]);
        self.begin(given, tokens).finish(&program).remove(0)
    }
}

impl Module for GraphNet {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.layers.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self { layers: self.layers.fork(device), dropout: self.dropout.fork(device), ..self }
    }

    fn to_device(self, device: &Device) -> Self {
        Self { layers: self.layers.to_device(device), dropout: self.dropout.to_device(device), ..self }
    }

    fn train(self) -> Self {
        Self { layers: self.layers.train(), dropout: self.dropout.train(), ..self }
    }

    fn valid(&self) -> Self {
        Self { layers: self.layers.valid(), dropout: self.dropout.valid(), outline: Arc::clone(&self.outline) }
    }

    fn materialize(self) -> Self {
        Self { layers: self.layers.materialize(), ..self }
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.layers.visit(visitor);
        visitor.enter_module("dropout", named_layers::CONTAINER);
        self.dropout.visit(visitor);
        visitor.exit_module("dropout", named_layers::CONTAINER);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let layers = self.layers.map(mapper);
        mapper.enter_module("dropout", named_layers::CONTAINER);
        let dropout = self.dropout.map(mapper);
        mapper.exit_module("dropout", named_layers::CONTAINER);
        Self { layers, dropout, ..self }
    }
}

impl ModuleDisplayDefault for GraphNet {
    fn content(&self, content: Content) -> Option<Content> {
        content.add("family", &self.graph().family).add("layers", &self.layers.0.len()).optional()
    }
}

impl ModuleDisplay for GraphNet {}
