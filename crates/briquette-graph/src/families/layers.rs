//! Blocks that families share.

use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::ValueId;
use crate::op::{Attention, Composite, ElementFunction, Primitive};
use briquette_core::{Error, Result};

/// `q`, `k`, `v` and output layers of an attention, by path.
pub(super) struct ProjectionNames<'a> {
    pub(super) q: &'a str,
    pub(super) k: &'a str,
    pub(super) v: &'a str,
    pub(super) out: &'a str,
}

/// Adds projections, attention and output layer. Heads are counted from the rows of the weights.
pub(super) fn attention(
    to: &mut GraphBuilder,
    path: &str,
    names: &ProjectionNames,
    head_width: usize,
    settings: Attention,
    x: ValueId,
) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let heads = heads(to, &at(names.q), head_width)?;
    let kv_heads = heads_of_keys(to, &at(names.k), head_width, heads)?;
    let q = to.linear(&at(names.q), x)?;
    let k = to.linear(&at(names.k), x)?;
    let v = to.linear(&at(names.v), x)?;
    let settings = Attention { heads, kv_heads, ..settings };
    let mixed = to.node(&at("attention"), Composite::Attention(settings), &[q.into(), k.into(), v.into()]);
    to.linear(&at(names.out), mixed)
}

/// Heads of a projection: its outputs over the width of a head.
fn heads(to: &GraphBuilder, path: &str, width: usize) -> Result<usize> {
    let name = format!("{path}.weight");
    let rows = to.headers().matrix(&name).map_or(width, |[rows, _]| rows);
    match rows.is_multiple_of(width) && rows > 0 {
        true => Ok(rows / width),
        false => {
            Err(Error::input(format!("found {rows} outputs, expected a multiple of a head's width {width}")).at(name))
        }
    }
}

fn heads_of_keys(to: &GraphBuilder, path: &str, width: usize, heads_of_queries: usize) -> Result<usize> {
    let n = heads(to, path, width)?;
    match heads_of_queries.is_multiple_of(n) {
        true => Ok(n),
        false => Err(Error::input(format!("found {n} heads of keys for {heads_of_queries} heads of queries")).at(path)),
    }
}

/// `x + inner(norm(x))`.
pub(super) fn pre_norm<'a>(
    to: &mut GraphBuilder<'a>,
    path: &str,
    norm: impl FnOnce(&mut GraphBuilder<'a>, ValueId) -> Result<ValueId>,
    inner: impl FnOnce(&mut GraphBuilder<'a>, ValueId) -> Result<ValueId>,
    x: ValueId,
) -> Result<ValueId> {
    let normed = norm(to, x)?;
    let changed = inner(to, normed)?;
    Ok(to.add(&format!("{path}.residual"), x, changed))
}

/// `norm(x + inner(x))`.
pub(super) fn post_norm<'a>(
    to: &mut GraphBuilder<'a>,
    path: &str,
    norm: impl FnOnce(&mut GraphBuilder<'a>, ValueId) -> Result<ValueId>,
    inner: impl FnOnce(&mut GraphBuilder<'a>, ValueId) -> Result<ValueId>,
    x: ValueId,
) -> Result<ValueId> {
    let changed = inner(to, x)?;
    let sum = to.add(&format!("{path}.residual"), x, changed);
    norm(to, sum)
}

/// A gated feed-forward block: `down(function(gate x) · up x)`.
pub(super) fn gated(
    to: &mut GraphBuilder,
    path: &str,
    [gate, up, down]: [&str; 3],
    function: ElementFunction,
    x: ValueId,
) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let opened = to.linear(&at(gate), x)?;
    let inner = to.linear(&at(up), x)?;
    let inner = to.node(&at("gate"), Composite::Gate(function), &[opened.into(), inner.into()]);
    to.linear(&at(down), inner)
}

/// A convolution without bias that keeps the size but for its stride, and its batch norm.
pub(super) fn conv_norm(
    to: &mut GraphBuilder,
    [conv, norm]: [&str; 2],
    settings: crate::op::ConvSettings,
    x: ValueId,
) -> Result<ValueId> {
    let x = to.conv(conv, x, settings)?;
    to.batch_norm(norm, x, 1e-5)
}

/// `[batch, channels, ..]` to `[batch, channels · ..]`.
pub(super) fn flatten(to: &mut GraphBuilder, x: ValueId, shape: [usize; 2]) -> ValueId {
    to.node("flatten", Primitive::Reshape(shape.to_vec()), &[x.into()])
}

/// The activation that a key of `config.json` names.
pub(super) fn activation(config: &Config, key: &str, usual: ElementFunction) -> Result<ElementFunction> {
    match config.text(key) {
        None => Ok(usual),
        Some("gelu") => Ok(ElementFunction::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Ok(ElementFunction::GeluTanh),
        Some("relu") => Ok(ElementFunction::Relu),
        Some("silu" | "swish") => Ok(ElementFunction::Silu),
        Some(other) => Err(Error::input(format!("{key} is {other:?}, which is not known")).at("config.json")),
    }
}

/// Compares the number of layers in `config.json` with the checkpoint.
pub(super) fn n_layers(to: &GraphBuilder, config: &Config, prefix: &str) -> Result<usize> {
    let found = to.headers().count(prefix);
    config.check("num_hidden_layers", found, &format!("the checkpoint under {prefix:?}"))?;
    Ok(found)
}

/// The tokens of an example, cut to the longest input.
pub(super) fn n_tokens(tokens: usize, longest: Option<usize>) -> usize {
    longest.map_or(tokens, |longest| tokens.min(longest)).max(1)
}
