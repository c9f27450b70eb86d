//! Creates the network of a checkpoint: its graph, its layers without weights, and the names of its tensors.

use super::dropout::{GraphDropout, dropped_values};
use super::example::{EXAMPLE, max_tokens};
use super::graph_source::GraphSource;
use super::headers::{GraphHeaders, config_beside, config_of};
use super::onnx_input::longest_text;
use super::parts::BlockCuts;
use super::weights::{BlankLayers, blank_layers};
use super::{GraphNet, GraphOutline};
use crate::Arch;
use crate::fresh::Initial;
use crate::low_rank::make_room;
use briquette_core::{Error, OutputAxis, Result, shown_path};
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::fixed_values::FixedGrids;
use briquette_graph::onnx::InputDims;
use briquette_graph::op::{Composite, Primitive};
use briquette_graph::{Config, Family, Graph, Headers, Op, Operand, ValueId, family_of, text_classes};
use briquette_nn::{NameMap, load_compressed, load_into};
use burn::tensor::Device;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Tensors that networks do not need: buffers, counters of training, heads that no graph knows, and images of decoders.
const EXTRAS: [&str; 18] = [
    "**.mask_token",
    "**.position_ids",
    "**.token_type_ids",
    "**.rotary_emb.inv_freq",
    "**.attn.masked_bias",
    "**.attn.bias",
    "**.relative_position_index",
    "pooler.**",
    "bert.pooler.**",
    "cls.**",
    "classifier.**",
    "qa_outputs.**",
    "logit_scale",
    "logit_bias",
    "vision_tower.**",
    "model.vision_tower.**",
    "multi_modal_projector.**",
    "model.multi_modal_projector.**",
];

/// The advice for matrices that fit only in the other layout.
const OTHER_LAYOUT: &str =
    "these fit in the other layout of Linear weights: set --layout (model.layout, or teacher_layout) to burn or torch";

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
        Self::of_checkpoint(&Checkpoint::open(path)?, device)
    }

    /// Does the same as [`from_checkpoint`](Self::from_checkpoint) for an open checkpoint, such as an entry of a file.
    ///
    /// # Errors
    /// See there.
    pub fn of_checkpoint(checkpoint: &Checkpoint, device: &Device) -> Result<Self> {
        let (network, names) = Self::unfilled(checkpoint, device)?;
        Self::filled(checkpoint, (network, &names), device)
    }

    /// Loads an ONNX file by a graph for inputs of these shapes.
    ///
    /// [`from_checkpoint`](Self::from_checkpoint) assumes usual shapes of texts and images. Other inputs, such as audio, need their own
    /// shapes, and may be run with further shapes later.
    ///
    /// # Errors
    /// - Config: an operator cannot be run.
    /// - Input: the file is no ONNX model or damaged, or `dims` does not fit the inputs.
    /// - Io: the file cannot be read.
    pub fn from_onnx(path: &Path, dims: &InputDims, device: &Device) -> Result<Self> {
        let dims = InputDims { extents: EXAMPLE, ..dims.clone() };
        let (network, names) = Self::of_onnx(path, &dims, &Config::parse(None)?, device)?;
        match network.layers.0.is_empty() {
            // A model whose weights are all inside of branches lists no tensors.
            true => Ok(network),
            false => Self::filled(&Checkpoint::open(path)?, (network, &names), device),
        }
    }

    /// Fills a network with the weights of a checkpoint, as codes where layers run on them.
    pub(crate) fn filled(checkpoint: &Checkpoint, (network, names): (Self, &NameMap), device: &Device) -> Result<Self> {
        let of_nodes = checkpoint.with_codes_of_nodes()?;
        let checkpoint = of_nodes.as_ref().unwrap_or(checkpoint);
        match briquette_nn::holds_codes(device) {
            true => load_compressed(network, checkpoint, names),
            false => load_into(network, checkpoint, names),
        }
    }

    /// Creates the unfilled network of a checkpoint of any family, with or without a head, and its name map.
    ///
    /// # Errors
    /// See [`from_checkpoint`](Self::from_checkpoint).
    pub fn unfilled(checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        if let Some(file) = checkpoint.network_file() {
            return Self::of_checkpoint_onnx(file.path(), checkpoint, device);
        }
        let family = family_of(&GraphHeaders::of(checkpoint).headers(), &config_of(checkpoint)?);
        let family = family.ok_or_else(|| {
            let message = "no family of networks has this model_type or these tensor names";
            Error::config(message).at(shown_path(checkpoint.path()))
        })?;
        Self::of_family(family, checkpoint, device)
    }

    /// Creates the unfilled network of an architecture and its name map. Weights take no memory yet.
    ///
    /// Linear layers that the checkpoint stores as two factors have low rank.
    ///
    /// # Errors
    /// - Config: an operation cannot be run.
    /// - Input: files are damaged, do not fit the family, or a decoder has no head.
    pub fn blank(arch: Arch, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        arch.check(checkpoint)?;
        if let Some(file) = checkpoint.network_file() {
            return Self::of_checkpoint_onnx(file.path(), checkpoint, device);
        }
        let (network, names) = Self::of_family(arch.family(), checkpoint, device)?;
        network.check_head(arch.task()).map_err(|error| error.at(shown_path(checkpoint.path())))?;
        Ok((network, names))
    }

    /// Creates the unfilled network of an ONNX model, whose texts are as long as config.json next to it allows.
    fn of_checkpoint_onnx(path: &Path, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        let config = config_beside(checkpoint)?;
        let (mut network, names) = Self::of_onnx(path, &InputDims::from(EXAMPLE), &config, device)?;
        if let Some(outline) = Arc::get_mut(&mut network.outline) {
            outline.max_tokens = longest_text(&config);
        }
        Ok((network, names))
    }

    /// Like [`blank`](Self::blank), for a network of any task, with or without its head.
    fn of_family(family: &'static Family, checkpoint: &Checkpoint, device: &Device) -> Result<(Self, NameMap)> {
        let (tensors, config) = (GraphHeaders::of(checkpoint), config_of(checkpoint)?);
        let grids = FixedGrids::of(checkpoint)?;
        let found = Self::of_headers(family, &tensors.headers(), &config, (Initial::default(), &grids), device);
        let found = found.map_err(|error| match family.graph(&tensors.turned().headers(), &config, EXAMPLE) {
            Ok(_) => Error { message: format!("{}; {OTHER_LAYOUT}", error.message), ..error },
            Err(_) => error,
        });
        let (mut network, names) = found.map_err(|error| error.at(shown_path(checkpoint.path())))?;
        make_room(&mut network, checkpoint, &names);
        let unused = network.graph().unused.iter().filter(|name| is_extra(name));
        let copies = network.graph().weights.iter().flat_map(|weight| &weight.aliases);
        let has = |name: &str| checkpoint.tensors().iter().any(|info| info.name == name);
        let mut ignored = unused.chain(copies.filter(|name| has(name)));
        let names = ignored.try_fold(names, |names, name| names.ignore(name))?;
        Ok((network, ignoring_factors(checkpoint, names)?))
    }

    /// Creates the unfilled network of these headers, with the dropout of a config.json and fixed grids of activations.
    pub(super) fn of_headers(
        family: &'static Family,
        headers: &Headers,
        config: &Config,
        (initial, grids): (Initial, &FixedGrids),
        device: &Device,
    ) -> Result<(Self, NameMap)> {
        let graph = grids.apply(family.graph(headers, config, EXAMPLE)?)?;
        let dropout = GraphDropout::of(config, &graph.family)?;
        let max_tokens = max_tokens(family, headers, config)?;
        let (mut network, names) = Self::with_initial(graph, initial, max_tokens, device)?;
        if let Some(outline) = Arc::get_mut(&mut network.outline) {
            outline.source =
                Some(GraphSource { family, headers: GraphHeaders::copied(headers), config: config.clone() });
        }
        Ok((Self { dropout, ..network }, names))
    }

    /// Creates the unfilled network of a graph, which was built for a batch of 2.
    ///
    /// # Errors
    /// - Input: the graph is not sound.
    /// - Config: an operation cannot be run.
    pub fn of_graph(graph: Graph, device: &Device) -> Result<(Self, NameMap)> {
        Self::with_initial(graph, Initial::default(), None, device)
    }

    /// Like [`of_graph`](Self::of_graph), with how weights are drawn, and the longest text.
    pub(super) fn with_initial(
        mut graph: Graph,
        initial: Initial,
        max_tokens: Option<usize>,
        device: &Device,
    ) -> Result<(Self, NameMap)> {
        let mut shapes = graph.lower()?.shapes;
        shrink_to_fit(&mut graph);
        shapes.iter_mut().for_each(Vec::shrink_to_fit);
        shapes.shrink_to_fit();
        // The first output of text networks is their hidden state or their logits; others are heads.
        let takes_images = graph.takes_images();
        let output = if takes_images { graph.outputs.last() } else { graph.outputs.first() };
        let Some(&states) = output else {
            return Err(Error::config("the graph has no output"));
        };
        let classes = text_classes(&graph, &shapes);
        let output = classes.map_or(states, |classes| classes.logits);
        let needed = super::program::needed_nodes(&graph, &[], &[output]);
        let BlankLayers { layers, index, renames } = blank_layers(&graph, None, &needed, initial, device)?;
        let names = names(&graph, &needed, renames)?;
        let last_state = if output == states { last_state(&graph, output) } else { states };
        let cuts = BlockCuts::of(&graph, if takes_images { output } else { last_state });
        let (dropped, programs) = (dropped_values(&graph), Mutex::default());
        let onnx = None;
        let outline = GraphOutline {
            graph,
            shapes,
            index,
            dropped,
            output,
            states,
            classifies_text: classes.is_some(),
            classes_of_last_token: classes.is_some_and(|classes| classes.of_last_token),
            last_state,
            cuts,
            max_tokens,
            source: None,
            onnx,
            programs,
        };
        Ok((Self { layers, dropout: GraphDropout::default(), outline: Arc::new(outline) }, names))
    }
}

/// Frees the memory that the lists of a graph reserve for further entries.
pub(super) fn shrink_to_fit(graph: &mut Graph) {
    for node in &mut graph.nodes {
        node.inputs.shrink_to_fit();
        node.outputs.shrink_to_fit();
    }
    graph.weights.iter_mut().for_each(|weight| weight.shape.0.shrink_to_fit());
    graph.nodes.shrink_to_fit();
    graph.values.shrink_to_fit();
    graph.weights.shrink_to_fit();
}

/// Ignores the factors of weights that are ignored.
fn ignoring_factors(checkpoint: &Checkpoint, names: NameMap) -> Result<NameMap> {
    let all = checkpoint.tensors().iter().map(|info| info.name.as_str());
    all.filter(|name| name.ends_with(".down.weight")).try_fold(names, |names, name| {
        let whole = name.replace(".down.weight", ".weight");
        if names.is_ignored(&whole) { names.ignore(name) } else { Ok(names) }
    })
}

fn is_extra(name: &str) -> bool {
    briquette_core::Patterns::new(EXTRAS).is_ok_and(|extras| extras.matches(name))
}

/// Maps to the names of the graph, and ignores the weights of outputs that are not computed.
pub(super) fn names(graph: &Graph, needed: &[usize], renames: Vec<(String, String)>) -> Result<NameMap> {
    let names = renames.into_iter().fold(NameMap::torch(), |names, (from, to)| names.rename(&format!("^{from}"), &to));
    let used: std::collections::BTreeSet<usize> =
        needed.iter().flat_map(|&node| graph.nodes[node].weights()).map(|(_, weight)| weight.0).collect();
    let others = graph.weights.iter().enumerate().filter(|(index, _)| !used.contains(index));
    let names = others.into_iter().try_fold(names, |names, (_, weight)| names.ignore(&as_pattern(&weight.name)))?;
    let turned = needed.iter().flat_map(|&node| turned_weight(graph, node));
    Ok(turned.fold(names, |names, name| names.stored_by_input(name)))
}

/// Returns a pattern that matches a name, whose signs that patterns give a meaning match any character.
pub(super) fn as_pattern(name: &str) -> String {
    name.replace(['*', '?', '[', ']', '{', '}', '\\', '!'], "?")
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
///
/// Functions of each logit may follow it, such as BART's bias.
fn last_state(graph: &Graph, output: ValueId) -> ValueId {
    let mut value = output;
    loop {
        let Some(node) = graph.nodes.iter().find(|node| node.outputs.contains(&value)) else { return output };
        let mut inputs = node.values().map(|(_, value)| value);
        match (&node.op, inputs.next(), inputs.next()) {
            (Op::Composite(Composite::Linear), Some(input), None) => return input,
            (Op::Primitive(Primitive::Elementwise(_) | Primitive::Scale(_)), Some(input), None) => value = input,
            _ => return output,
        }
    }
}
