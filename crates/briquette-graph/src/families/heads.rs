//! Heads of text encoders, each added if the checkpoint has it.

use crate::builder::GraphBuilder;
use crate::graph::{Operand, ValueId};
use crate::op::{Composite, ElementFunction};
use briquette_core::Result;

/// Whether the checkpoint has this layer.
pub(super) fn has(to: &GraphBuilder, path: &str) -> bool {
    to.headers().has(&format!("{path}.weight"))
}

/// The first token: `[batch, tokens, width]` to `[batch, width]`.
pub(super) fn first_token(to: &mut GraphBuilder, x: ValueId) -> ValueId {
    to.node("first_token", Composite::TakeToken(0), &[x.into()])
}

/// `function(dense(first token))`; none if the checkpoint has no such layer.
pub(super) fn pooled(
    to: &mut GraphBuilder,
    path: &str,
    function: ElementFunction,
    x: ValueId,
) -> Result<Option<ValueId>> {
    if !has(to, path) {
        return Ok(None);
    }
    let first = first_token(to, x);
    let dense = to.linear(path, first)?;
    Ok(Some(to.function(&format!("{path}.activation"), function, dense)))
}

/// A linear layer; none if the checkpoint has no such layer.
pub(super) fn optional(to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<Option<ValueId>> {
    if has(to, path) { to.linear(path, x).map(Some) } else { Ok(None) }
}

/// The paths of a head over the vocabulary.
pub(super) struct VocabularyHead<'a> {
    pub(super) dense: &'a str,
    pub(super) norm: &'a str,
    /// The last layer; its weight is the table of words where the checkpoint has no other.
    pub(super) decoder: &'a str,
    /// The last layer's bias, where it is not `decoder.bias`.
    pub(super) bias: &'a str,
    pub(super) table: &'a str,
    pub(super) function: ElementFunction,
    pub(super) eps: f64,
}

impl VocabularyHead<'_> {
    /// `decoder(norm(function(dense x)))`; none if the checkpoint has no such head.
    pub(super) fn add(&self, to: &mut GraphBuilder, x: ValueId) -> Result<Option<ValueId>> {
        if !has(to, self.dense) {
            return Ok(None);
        }
        let path = self.dense.strip_suffix(".dense").unwrap_or(self.dense);
        let inner = to.linear(self.dense, x)?;
        let inner = to.function(&format!("{path}.activation"), self.function, inner);
        let inner = to.layer_norm(self.norm, inner, self.eps)?;
        // A decoder with a weight of its own has a bias of its own.
        let own = format!("{}.bias", self.decoder);
        let biases = if has(to, self.decoder) { [own.as_str(), self.bias] } else { [self.bias, own.as_str()] };
        tied_linear(to, self.table, self.decoder, &biases, inner).map(Some)
    }
}

/// A linear layer whose weight is the table if it has none of its own. The bias is the first of `biases` that exists.
pub(super) fn tied_linear(
    to: &mut GraphBuilder,
    table: &str,
    path: &str,
    biases: &[&str],
    x: ValueId,
) -> Result<ValueId> {
    let name = format!("{path}.weight");
    if !to.headers().has(&name) {
        let table = to.weight(&format!("{table}.weight"))?;
        to.alias(table, &name);
    }
    let mut inputs: Vec<Operand> = vec![x.into(), to.weight(&name)?.into()];
    if let Some(bias) = biases.iter().find(|name| to.headers().has(name)) {
        let weight = to.weight(bias)?;
        for other in biases.iter().filter(|other| *other != bias) {
            to.alias(weight, other);
        }
        inputs.push(weight.into());
    }
    Ok(to.node(path, Composite::Linear, &inputs))
}
