//! Outputs of a model, with the names of transformers' own exports.

use super::emitter::Emitter;
use super::text_inputs::TARGET_SEQUENCE;
use super::weights::OnnxFloat;
use crate::graph::{Graph, Node, ValueId};
use crate::op::{Composite, ElementFunction, Op, Primitive};
use briquette_formats::onnx_write::{OnnxDim, OnnxType, OnnxValue};

/// Declares the outputs of the graph: logits first, as programs expect that read one output.
pub(super) fn add(to: &mut Emitter) {
    let graph = &to.symbolic.graph;
    let mut outputs: Vec<(&str, ValueId)> = graph.outputs.iter().map(|&value| (name_of(to, value), value)).collect();
    outputs.sort_by_key(|(name, _)| *name != LOGITS);
    for (name, value) in outputs {
        to.enter(name);
        let mut computed = to.operand(value.into());
        if to.float == OnnxFloat::F16 {
            computed = to.cast(&computed, OnnxType::F32);
        }
        let name = to.unique(name);
        let (is_input, is_output) =
            (is_given(to, &computed), to.model.outputs.iter().any(|output| output.name == computed));
        if is_input || is_output {
            to.enter("");
            let copied = to.plain("Identity", &[&computed]);
            rename(to, &copied, &name);
        } else {
            rename(to, &computed, &name);
            to.set(value, name.clone());
        }
        let dims = to.dims(value.into());
        // An extent that follows from another has no name of its own.
        let is_target = to.targets.contains(&value);
        let shape = dims.iter().map(|dim| match (dim.symbol(), dim.is_dynamic()) {
            (Some("sequence"), _) if is_target => OnnxDim::Named(TARGET_SEQUENCE),
            (Some(name), _) if is_input_extent(to, name, dim.extent) => OnnxDim::Named(name),
            (symbol, true) => OnnxDim::Named(derived_name(symbol)),
            (_, false) => OnnxDim::Fixed(dim.extent),
        });
        let shape = shape.collect();
        to.model.outputs.push(OnnxValue::new(name, OnnxType::F32, shape));
    }
}

const LOGITS: &str = "logits";

/// Names an output by what computes it. A state that a head reads is no logits, and a state of hidden tokens has three axes or more.
fn name_of(to: &Emitter, value: ValueId) -> &'static str {
    let graph = &to.symbolic.graph;
    let Some(maker) = maker(graph, value) else { return "output" };
    let is = |name: &str| maker.name.contains(name);
    let is_read = graph.nodes.iter().any(|node| node.values().any(|(_, read)| read == value));
    if is("pooler") {
        "pooler_output"
    } else if is("visual_projection") {
        "image_embeds"
    } else if is("text_projection") || maker.name == "text_model.head" {
        "text_embeds"
    } else if is_of_linear(graph, value) && !is_read {
        LOGITS
    } else if to.symbolic.value(value).len() < 3 {
        "pooler_output"
    } else {
        "last_hidden_state"
    }
}

fn maker(graph: &Graph, value: ValueId) -> Option<&Node> {
    graph.nodes.iter().find(|node| node.outputs.contains(&value))
}

/// Whether a linear layer of a head makes this value, perhaps scaled and capped, or the mean of two.
fn is_of_linear(graph: &Graph, value: ValueId) -> bool {
    let Some(maker) = maker(graph, value) else { return false };
    let is_in_block =
        graph.blocks.iter().any(|block| graph.nodes[block.nodes.clone()].iter().any(|node| std::ptr::eq(node, maker)));
    let passes = |function: ElementFunction| matches!(function, ElementFunction::Add | ElementFunction::Tanh);
    match &maker.op {
        _ if is_in_block => false,
        Op::Composite(Composite::Linear) => true,
        Op::Primitive(Primitive::Scale(_)) => maker.values().all(|(_, value)| is_of_linear(graph, value)),
        Op::Primitive(Primitive::Elementwise(function)) if passes(*function) => {
            maker.values().all(|(_, value)| is_of_linear(graph, value))
        }
        _ => false,
    }
}

fn is_given(to: &Emitter, name: &str) -> bool {
    to.model.inputs.iter().any(|input| input.name == name)
}

/// The name of an extent that follows from an extent of the inputs.
fn derived_name(symbol: Option<&str>) -> &'static str {
    match symbol {
        Some("batch") => "output_batch",
        Some("sequence") => "output_sequence",
        Some("height") => "output_height",
        Some("width") => "output_width",
        _ => "output_extent",
    }
}

/// Whether an input has this extent under this name, in the graph's example.
fn is_input_extent(to: &Emitter, name: &str, extent: usize) -> bool {
    let graph = &to.symbolic.graph;
    let mut dims = graph.inputs.iter().flat_map(|input| to.symbolic.value(input.value).to_vec());
    dims.any(|dim| dim.symbol() == Some(name) && dim.extent == extent)
}

/// Gives a computed value another name.
fn rename(to: &mut Emitter, from: &str, name: &str) {
    for node in &mut to.model.nodes {
        for known in node.inputs.iter_mut().chain(&mut node.outputs) {
            if known == from {
                name.clone_into(known);
            }
        }
    }
}
