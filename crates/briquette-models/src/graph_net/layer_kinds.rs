//! Settings of single layers in the config.json of a student.

use crate::student_config::LAYER_TYPES;
use briquette_graph::op::Composite;
use briquette_graph::{Block, Graph, Op};
use serde_json::{Map, Value};

/// Keeps the settings of chosen layers, which may follow from a layer's number.
///
/// Lists with an entry for each layer, such as SmolLM3's `no_rope_layers`, keep the entries of the chosen layers.
/// Gemma and ModernBERT limit the attention of every other layer, or of all but every sixth. A chosen layer has
/// another number in the student, so its kind is written to `layer_types`.
pub(super) fn keep_layer_kinds(config: &mut Map<String, Value>, graph: &Graph, chosen: &[usize]) {
    let n = graph.blocks.len();
    let is_of_layers = |key: &str, list: &[Value]| key != LAYER_TYPES && key.contains("layers") && list.len() == n;
    for (key, value) in config.iter_mut() {
        if let Value::Array(list) = value
            && is_of_layers(key, list)
        {
            *list = chosen.iter().filter_map(|&layer| list.get(layer).cloned()).collect();
        }
    }
    let kinds: Vec<&str> = graph.blocks.iter().map(|block| kind_of(graph, block)).collect();
    let is_mixed = kinds.iter().any(|kind| *kind != kinds[0]);
    if is_mixed && !config.contains_key(LAYER_TYPES) {
        let kept: Vec<Value> = chosen.iter().filter_map(|&layer| Some((*kinds.get(layer)?).into())).collect();
        config.insert(LAYER_TYPES.into(), kept.into());
    }
}

/// Returns the kind of a block's attention, in the words of transformers.
fn kind_of(graph: &Graph, block: &Block) -> &'static str {
    let is_sliding = graph.nodes[block.nodes.clone()].iter().any(|node| match &node.op {
        Op::Composite(Composite::Attention(settings)) => settings.window.is_some(),
        _ => false,
    });
    if is_sliding { "sliding_attention" } else { "full_attention" }
}
