//! Hidden states and attention probabilities of every block, for distillation.

use super::attend::probabilities;
use super::steps::AttentionCall;
use super::{AnyTensor, GraphNet, RunInputs};
use briquette_graph::op::{Attention, Composite};
use briquette_graph::{Node, Op, ValueId};
use burn::tensor::{Bool, Int, Tensor};

/// Intermediate results of each block for a batch.
#[derive(Debug, Clone, Default)]
pub struct NetworkTrace {
    /// Hidden state after each block, `[batch, length, width]`.
    pub hidden: Vec<Tensor<3>>,
    /// Attention probabilities `[batch, heads, length, length]`; rows sum to 1.
    pub attention: Vec<Tensor<4>>,
    /// Attention values `[batch, length, width]`.
    pub values: Vec<Tensor<3>>,
}

impl GraphNet {
    /// Returns the hidden state after each block, and with `has_attention` also probabilities and values.
    ///
    /// Attention probabilities take memory quadratic in the length.
    ///
    /// # Panics
    /// If the graph has no blocks, or a token exceeds the vocabulary.
    pub fn trace(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>, has_attention: bool) -> NetworkTrace {
        let states = self.hidden_states();
        let attentions: Vec<(&Node, &Attention)> = match has_attention {
            true => self.graph().nodes.iter().filter_map(attention_of).collect(),
            false => Vec::new(),
        };
        let qkv = |(node, _): &(&Node, &Attention)| node.values().take(3).map(|(_, value)| value).collect::<Vec<_>>();
        let wanted: Vec<ValueId> = states.iter().copied().chain(attentions.iter().flat_map(qkv)).collect();
        let mut found = self.run(&RunInputs::padded(tokens, padding.clone()), &wanted);
        let projections = found.split_off(states.len());
        let mut trace =
            NetworkTrace { hidden: found.into_iter().map(AnyTensor::three).collect(), ..NetworkTrace::default() };
        for ((_, settings), qkv) in attentions.into_iter().zip(projections.chunks(3)) {
            let [q, k, v] = [0, 1, 2].map(|at| qkv[at].clone().three());
            let width = q.dims()[2] / settings.heads;
            let call = AttentionCall { settings: settings.clone(), place: 0, width };
            trace.attention.push(probabilities([q, k], None, &call, Some(padding.clone())));
            trace.values.push(v);
        }
        trace
    }
}

fn attention_of(node: &Node) -> Option<(&Node, &Attention)> {
    match &node.op {
        Op::Composite(Composite::Attention(settings)) => Some((node, settings)),
        _ => None,
    }
}
