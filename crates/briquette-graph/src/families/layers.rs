//! Layers that families share: attention, residual blocks, feed-forward layers, convolutions.

use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Operand, ValueId};
use crate::op::{Attention, Composite, ElementFunction, Primitive};
use briquette_core::{Error, Result};

/// `q`, `k`, `v` and output layers of an attention, by path.
pub(super) struct ProjectionNames<'a> {
    pub(super) q: &'a str,
    pub(super) k: &'a str,
    pub(super) v: &'a str,
    pub(super) out: &'a str,
}

/// Queries, keys and values, and how many heads they have.
pub(super) struct Projected {
    pub(super) q: ValueId,
    pub(super) k: ValueId,
    pub(super) v: ValueId,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
}

/// Adds projections, attention and output layer. Heads are counted from the rows of the weights.
pub(super) fn attention(
    to: &mut GraphBuilder,
    path: &str,
    names: &ProjectionNames,
    head_width: usize,
    settings: Attention,
    bias: Option<ValueId>,
    x: ValueId,
) -> Result<ValueId> {
    let projected = project(to, path, names, head_width, [x; 2])?;
    let mixed = attend(to, path, &projected, settings, bias);
    to.linear(&format!("{path}.{}", names.out), mixed)
}

/// Adds attention of `x` to the output of an encoder.
pub(super) fn cross_attention(
    to: &mut GraphBuilder,
    path: &str,
    names: &ProjectionNames,
    head_width: usize,
    settings: Attention,
    [x, encoded]: [ValueId; 2],
) -> Result<ValueId> {
    let projected = project(to, path, names, head_width, [x, encoded])?;
    let mixed = attend(to, path, &projected, Attention { cross: true, ..settings }, None);
    to.linear(&format!("{path}.{}", names.out), mixed)
}

/// Adds the layers of queries, and of keys and values, each with its input.
pub(super) fn project(
    to: &mut GraphBuilder,
    path: &str,
    names: &ProjectionNames,
    head_width: usize,
    [x, keys]: [ValueId; 2],
) -> Result<Projected> {
    let at = |name: &str| format!("{path}.{name}");
    let heads = heads(to, &at(names.q), head_width)?;
    let kv_heads = heads_of_keys(to, &at(names.k), head_width, heads)?;
    let q = to.linear(&at(names.q), x)?;
    let k = to.linear(&at(names.k), keys)?;
    let v = to.linear(&at(names.v), keys)?;
    Ok(Projected { q, k, v, heads, kv_heads })
}

/// Adds the attention itself.
pub(super) fn attend(
    to: &mut GraphBuilder,
    path: &str,
    projected: &Projected,
    settings: Attention,
    bias: Option<ValueId>,
) -> ValueId {
    let &Projected { q, k, v, heads, kv_heads } = projected;
    let mut inputs: Vec<Operand> = vec![q.into(), k.into(), v.into()];
    inputs.extend(bias.map(Operand::from));
    let settings = Attention { heads, kv_heads, ..settings };
    to.node(&format!("{path}.attention"), Composite::Attention(settings), &inputs)
}

/// Cuts the output of a fused layer into parts along its last axis.
pub(super) fn fused_split(to: &mut GraphBuilder, path: &str, sizes: &[usize], x: ValueId) -> Vec<ValueId> {
    let split = Primitive::Split { axis: 2, sizes: sizes.to_vec() };
    to.nodes(&format!("{path}.split"), split, &[x.into()], sizes.len())
}

/// Counts the heads of keys of a fused layer with `n_out` outputs: `(n + 2) · width` for each, with `n` heads of queries.
///
/// Fewer heads than `config.json` has are left after structured pruning. `usual` is returned if `n_out` fits no number of heads.
pub(super) fn fused_kv_heads(n_out: usize, width: usize, n: usize, usual: usize) -> usize {
    let each = n.saturating_add(2).saturating_mul(width);
    if each > 0 && n_out > 0 && n_out.is_multiple_of(each) { n_out / each } else { usual }
}

/// The width of a head: the model's width over its heads.
pub(super) fn head_width(width: usize, heads: usize) -> Result<usize> {
    match width.is_multiple_of(heads) {
        true => Ok(width / heads),
        false => {
            let message = format!("{heads} heads (num_attention_heads) do not divide a width of {width} (hidden_size)");
            Err(Error::input(message).at("config.json"))
        }
    }
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

/// A feed-forward block: `outer(function(inner x))`.
pub(super) fn feed_forward(
    to: &mut GraphBuilder,
    [inner, outer]: [&str; 2],
    function: ElementFunction,
    x: ValueId,
) -> Result<ValueId> {
    let x = to.linear(inner, x)?;
    // `encoder.layer.0.intermediate.dense` is followed by `encoder.layer.0.intermediate.activation`.
    let path = inner.strip_suffix(".dense").unwrap_or(inner);
    let x = to.function(&format!("{path}.activation"), function, x);
    to.linear(outer, x)
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

/// The activation that a key of `config.json` names.
pub(super) fn activation(config: &Config, key: &str, usual: ElementFunction) -> Result<ElementFunction> {
    match config.text(key) {
        None => Ok(usual),
        Some("gelu" | "gelu_python") => Ok(ElementFunction::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Ok(ElementFunction::GeluTanh),
        Some("quick_gelu") => Ok(ElementFunction::QuickGelu),
        Some("relu") => Ok(ElementFunction::Relu),
        Some("relu6") => Ok(ElementFunction::Relu6),
        Some("silu" | "swish") => Ok(ElementFunction::Silu),
        Some("tanh") => Ok(ElementFunction::Tanh),
        Some(other) => Err(Error::input(format!("{key} is {other:?}, which is not known")).at("config.json")),
    }
}

/// Counts the layers of the checkpoint, and compares them with a key of `config.json`.
pub(super) fn n_layers(to: &GraphBuilder, config: &Config, key: &str, prefix: &str) -> Result<usize> {
    let found = to.headers().count(prefix);
    config.check(key, found, &format!("the checkpoint under {prefix:?}"))?;
    Ok(found)
}

/// The tokens of an example, cut to the longest input.
pub(super) fn n_tokens(tokens: usize, longest: Option<usize>) -> usize {
    longest.map_or(tokens, |longest| tokens.min(longest)).max(1)
}

/// The first of these prefixes with which a tensor of this name exists; the last where there is none.
pub(super) fn prefix_of<'a>(to: &crate::headers::Headers, prefixes: &[&'a str], name: &str) -> &'a str {
    let found = prefixes.iter().find(|prefix| to.has(&format!("{prefix}{name}")));
    found.or(prefixes.last()).copied().unwrap_or_default()
}

/// Refuses a decoder whose tokens see later ones.
///
/// # Errors
/// Input: `config.json` says so.
pub(super) fn check_causal(config: &Config) -> Result<()> {
    let both = ["use_bidirectional_attention"].into_iter().find(|key| config.flag(key) == Some(true));
    let key = both.or_else(|| (config.flag("is_causal") == Some(false)).then_some("is_causal"));
    // Gemma 1 and 2 ignore it.
    let is_ignored = both.is_some() && matches!(config.model_type(), Some("gemma" | "gemma2"));
    match key.filter(|_| !is_ignored) {
        Some(key) => {
            let message = "says that tokens see later ones, expected a decoder that reads from left to right";
            Err(Error::input(format!("{key} {message}; such networks are not supported")).at("config.json"))
        }
        None => Ok(()),
    }
}
