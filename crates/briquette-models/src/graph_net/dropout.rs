//! Dropout of hidden states and attention probabilities during training.

use crate::layers::{Dropout, DropoutConfig};
use briquette_core::{Error, Result};
use briquette_graph::op::{ElementFunction, Primitive};
use briquette_graph::{Block, Config, Graph, Op, Operand, ValueId};
use burn::module::Module;
use std::collections::BTreeSet;

/// The dropout of a network. It applies on autodiff devices, unless the network is `valid()` or frozen.
#[derive(Module, Debug)]
pub(super) struct GraphDropout {
    /// Dropout of embeddings, and of the output that each part of a block adds to the hidden states.
    pub(super) hidden: Dropout,
    /// Dropout of attention probabilities.
    pub(super) attention: Dropout,
}

impl Default for GraphDropout {
    fn default() -> Self {
        Self::with([0.0; 2])
    }
}

impl GraphDropout {
    /// Reads the rates of a config.json. BERT's are 0.1 where they are absent.
    ///
    /// # Errors
    /// Input: a rate is not from 0 to below 1.
    pub(super) fn of(config: &Config, family: &str) -> Result<Self> {
        let usual = if family == "BERT" { 0.1 } else { 0.0 };
        let rates = ["hidden_dropout_prob", "attention_probs_dropout_prob"];
        let rates = rates.map(|key| config.number(key).unwrap_or(usual));
        match rates.iter().find(|rate| !(0.0..1.0).contains(*rate)) {
            None => Ok(Self::with(rates)),
            Some(rate) => {
                let message = format!("a dropout rate is {rate}, expected 0 to below 1; correct it");
                Err(Error::input(message).at("config.json"))
            }
        }
    }

    fn with([hidden, attention]: [f64; 2]) -> Self {
        Self { hidden: DropoutConfig::new(hidden).init(), attention: DropoutConfig::new(attention).init() }
    }
}

/// Returns the values to which the dropout of hidden states applies.
///
/// They are the input of the first block, and in each residual sum of a block, what is added to the block's state.
pub(super) fn dropped_values(graph: &Graph) -> BTreeSet<ValueId> {
    let added = |block: &Block| graph.nodes[block.nodes.clone()].iter().filter_map(added_value).collect::<Vec<_>>();
    let first = graph.blocks.first().and_then(|block| first_state(graph, block));
    graph.blocks.iter().flat_map(added).chain(first).collect()
}

/// Returns the hidden states before a block: the value that a residual sum begins with. Others are biases of positions.
fn first_state(graph: &Graph, block: &Block) -> Option<ValueId> {
    let inputs = briquette_graph::blocks::border(graph, block).inputs;
    let sums = graph.nodes[block.nodes.clone()].iter().filter(|node| added_value(node).is_some());
    let state =
        sums.flat_map(briquette_graph::Node::values).map(|(_, value)| value).find(|value| inputs.contains(value));
    state.or(inputs.last().copied())
}

/// Returns the value that a residual sum adds to the hidden states.
fn added_value(node: &briquette_graph::Node) -> Option<ValueId> {
    let is_sum = node.op == Op::Primitive(Primitive::Elementwise(ElementFunction::Add));
    match node.inputs.as_slice() {
        [_, Operand::Value(added)] if is_sum && node.name.ends_with(".residual") => Some(*added),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use briquette_formats::Checkpoint;
    use briquette_graph::{Extents, graph_of};

    #[test]
    fn the_dropout_of_embeddings_is_no_dropout_of_biases() {
        for (name, first) in [
            ("bert", "bert.embeddings.LayerNorm"),
            ("mpnet", "embeddings.LayerNorm"),
            ("t5", "shared"),
            ("llama", "model.embed_tokens"),
        ] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
            let graph = graph_of(&Checkpoint::open(&path).unwrap(), Extents::default()).unwrap().unwrap();
            let dropped: Vec<&str> =
                dropped_values(&graph).iter().map(|value| graph.values[value.0].as_str()).collect();
            assert!(dropped.contains(&first), "{name}: {dropped:?}");
            assert!(!dropped.iter().any(|name| name.ends_with("by_head")), "{name}: {dropped:?}");
        }
    }
}
