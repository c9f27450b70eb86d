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
    let first = graph.blocks.first().map(|block| briquette_graph::blocks::border(graph, block));
    // If several values enter the block, hidden states are computed last: the others are biases of positions.
    let first = first.and_then(|border| border.inputs.last().copied());
    graph.blocks.iter().flat_map(added).chain(first).collect()
}

/// Returns the value that a residual sum adds to the hidden states.
fn added_value(node: &briquette_graph::Node) -> Option<ValueId> {
    let is_sum = node.op == Op::Primitive(Primitive::Elementwise(ElementFunction::Add));
    match node.inputs.as_slice() {
        [_, Operand::Value(added)] if is_sum && node.name.ends_with(".residual") => Some(*added),
        _ => None,
    }
}
