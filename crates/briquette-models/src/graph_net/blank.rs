//! Creates the network of a checkpoint: its graph, its layers without weights, and the names of its tensors.

use super::parts::BlockCuts;
use super::weights::{BlankLayers, blank_layers};
use super::{GraphNet, GraphOutline};
use briquette_core::{Error, OutputAxis, Result, shown_path};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::op::Composite;
use briquette_graph::{Extents, Graph, InputSource, Op, Operand, ValueId, graph_of};
use briquette_nn::{NameMap, load_compressed, load_into};
use burn::tensor::Device;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The example that programs are planned for. A batch of 2 differs from the extent 1 of weights that are repeated.
pub(super) const EXAMPLE: Extents = Extents { batch: 2, tokens: 5, image: [224, 224] };

/// Tensors that networks do not need: buffers, and counters of training.
const EXTRAS: [&str; 6] = [
    "**.mask_token",
    "**.position_ids",
    "**.token_type_ids",
    "**.rotary_emb.inv_freq",
    "**.attn.masked_bias",
    "**.attn.bias",
];

impl GraphNet {
    /// Loads a checkpoint of any family that has a graph.
    ///
    /// Compressed weights stay codes on devices whose layers run on codes.
    ///
    /// # Errors
    /// - Config: no family knows the model, or an operation cannot be run.
    /// - Input: files are damaged, or do not fit the family.
    /// - Io: a file cannot be read.
    pub fn from_checkpoint(path: &Path, device: &Device) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let (network, names) = Self::blank(&checkpoint, device)?;
        match briquette_nn::holds_codes(device) {
            true => load_compressed(network, &checkpoint, &names),
            false => load_into(network, &checkpoint, &names),
        }
    }

    /// Creates the unfilled network of a checkpoint and its name map. Weights take no memory yet.
    ///
    /// # Errors
    /// See [`from_checkpoint`](Self::from_checkpoint).
    pub fn blank(checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        let graph = graph_of(checkpoint, EXAMPLE)?.ok_or_else(|| {
            let message = "no family of networks has this model_type or these tensor names";
            Error::config(message).at(shown_path(checkpoint.path()))
        })?;
        let (mut network, names) = Self::of_graph(graph, device)?;
        if let Some(outline) = Arc::get_mut(&mut network.outline) {
            outline.max_tokens = max_tokens(checkpoint)?;
        }
        let unused = network.graph().unused.iter().filter(|name| is_extra(name));
        let copies = network.graph().weights.iter().flat_map(|weight| &weight.aliases);
        let has = |name: &str| checkpoint.tensors().iter().any(|info| info.name == name);
        let mut ignored = unused.chain(copies.filter(|name| has(name)));
        let names = ignored.try_fold(names, |names, name| names.ignore(name))?;
        Ok((network, names))
    }

    /// Creates the unfilled network of a graph, which was built for a batch of 2.
    ///
    /// # Errors
    /// - Input: the graph is not sound.
    /// - Config: an operation cannot be run.
    pub fn of_graph(graph: Graph, device: &Device) -> Result<(Self, NameMap)> {
        let shapes = graph.lower()?.shapes;
        // The first output of text networks is their hidden state or their logits; others are heads.
        let takes_images = graph.inputs.iter().any(|input| input.source == InputSource::Images);
        let output = if takes_images { graph.outputs.last() } else { graph.outputs.first() };
        let Some(&output) = output else {
            return Err(Error::config("the graph has no output"));
        };
        let needed = super::program::needed_nodes(&graph, &[], &[output]);
        let BlankLayers { layers, index, renames } = blank_layers(&graph, &needed, device)?;
        let names = names(&graph, &needed, renames)?;
        let last_state = last_state(&graph, output);
        let cuts = BlockCuts::of(&graph, if takes_images { output } else { last_state });
        let programs = Mutex::default();
        let outline = GraphOutline { graph, shapes, index, output, last_state, cuts, max_tokens: None, programs };
        Ok((Self { layers, outline: Arc::new(outline) }, names))
    }
}

/// Returns the longest text of a checkpoint: an example with more tokens is cut to it.
pub(super) fn max_tokens(checkpoint: &Checkpoint) -> Result<Option<usize>> {
    const MANY: usize = 1 << 20;
    let graph = graph_of(checkpoint, Extents { batch: 1, tokens: MANY, ..EXAMPLE })?;
    let ids = graph.and_then(|graph| graph.inputs.into_iter().find(|input| input.source == InputSource::TokenIds));
    Ok(ids.and_then(|ids| ids.shape.get(1).copied()).filter(|tokens| *tokens < MANY))
}

fn is_extra(name: &str) -> bool {
    briquette_core::Patterns::new(EXTRAS).is_ok_and(|extras| extras.matches(name))
}

/// Maps to the names of the graph, and ignores the weights of outputs that are not computed.
fn names(graph: &Graph, needed: &[usize], renames: Vec<(String, String)>) -> Result<NameMap> {
    let names = NameMap::torch().rename(&format!("^{}", super::VARIANT), "");
    let names = renames.into_iter().fold(names, |names, (from, to)| names.rename(&format!("^{from}"), &to));
    let used: std::collections::BTreeSet<usize> =
        needed.iter().flat_map(|&node| graph.nodes[node].weights()).map(|(_, weight)| weight.0).collect();
    let others = graph.weights.iter().enumerate().filter(|(index, _)| !used.contains(index));
    let names = others.into_iter().try_fold(names, |names, (_, weight)| names.ignore(&weight.name))?;
    let turned = needed.iter().flat_map(|&node| turned_weight(graph, node));
    Ok(turned.fold(names, |names, name| names.stored_by_input(name)))
}

/// Returns the weight of a linear layer that is `[in, out]` in the checkpoint.
fn turned_weight(graph: &Graph, node: usize) -> Option<&str> {
    let node = &graph.nodes[node];
    let (Op::Composite(Composite::Linear), Some(Operand::Weight(weight))) = (&node.op, node.inputs.get(1)) else {
        return None;
    };
    let weight = &graph.weights[weight.0];
    (weight.layout == OutputAxis::Last).then_some(weight.name.as_str())
}

/// Returns the input of the layer that computes the output from hidden states: the last linear layer.
fn last_state(graph: &Graph, output: ValueId) -> ValueId {
    let maker = graph.nodes.iter().find(|node| node.outputs.contains(&output));
    match maker {
        Some(node) if node.op == Op::Composite(Composite::Linear) => match node.inputs[0] {
            Operand::Value(value) => value,
            Operand::Weight(_) => output,
        },
        _ => output,
    }
}
