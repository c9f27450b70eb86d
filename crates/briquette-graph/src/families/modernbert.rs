//! ModernBERT: pre-norm blocks, rotary attention with local layers, gated feed-forward layers.

use super::extents::Extents;
use super::heads::{first_token, has, tied_linear};
use super::labels::{classes, is_of_tokens};
use super::layers::{Projected, activation, attend, fused_split, n_layers, n_tokens, pre_norm, prefix_of};
use super::rotary::rotary;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ElementFunction, Primitive, Reduction};
use briquette_core::{Error, Result};

const TABLE: &str = "embeddings.tok_embeddings";

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "model."].iter().any(|prefix| headers.has(&format!("{prefix}layers.0.attn.Wqkv.weight")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["model.", ""], &format!("{TABLE}.weight"));
    let table = format!("{prefix}{TABLE}");
    let mut to = GraphBuilder::new("ModernBERT", headers);
    if let Some(&[vocabulary, width]) = headers.get(&format!("{table}.weight")).map(|info| info.shape.0.as_slice()) {
        config.check("vocab_size", vocabulary, TABLE)?;
        config.check("hidden_size", width, TABLE)?;
    }
    let eps = config.number("norm_eps").unwrap_or(1e-5);
    let tokens = n_tokens(extents.tokens, config.size("max_position_embeddings")?);
    let ids = to.input_from("input_ids", &[extents.batch, tokens], InputSource::TokenIds);
    let x = to.embedding(&table, ids)?;
    let mut x = to.layer_norm(&format!("{prefix}embeddings.norm"), x, eps)?;
    let layers = format!("{prefix}layers.");
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = layer(&mut to, config, &format!("{layers}{index}"), index, eps, x)?;
    }
    x = to.layer_norm(&format!("{prefix}final_norm"), x, eps)?;
    let mut outputs = vec![x];
    outputs.extend(heads(&mut to, config, (&table, [extents.batch, tokens]), eps, x)?);
    Ok(to.finish(&outputs))
}

fn layer(to: &mut GraphBuilder, config: &Config, path: &str, index: usize, eps: f64, x: ValueId) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let heads = config.needed("num_attention_heads")?;
    let head_width = super::layers::head_width(config.needed("hidden_size")?, heads)?;
    let n_out = to.headers().matrix(&at("attn.Wqkv.weight")).map_or(0, |[n_out, _]| n_out);
    let heads = super::layers::fused_kv_heads(n_out, head_width, 1, heads);
    let settings = settings(config, index, head_width)?;
    let function = activation(config, "hidden_activation", ElementFunction::Gelu)?;
    to.begin_block(path);
    let norm = |to: &mut GraphBuilder, x| match has(to, &at("attn_norm")) {
        true => to.layer_norm(&at("attn_norm"), x, eps),
        // The first layer's input is normed already.
        false => Ok(x),
    };
    let attention = |to: &mut GraphBuilder, x| {
        let fused = to.linear(&at("attn.Wqkv"), x)?;
        let parts = fused_split(to, &at("attn.Wqkv"), &[heads * head_width; 3], fused);
        let projected = Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads: heads };
        let mixed = attend(to, &at("attn"), &projected, settings, None);
        to.linear(&at("attn.Wo"), mixed)
    };
    let x = pre_norm(to, &at("attn"), norm, attention, x)?;
    let feed_forward = |to: &mut GraphBuilder, x| {
        let fused = at("mlp.Wi");
        let rows = to.headers().matrix(&format!("{fused}.weight")).map_or(0, |[rows, _]| rows);
        if !rows.is_multiple_of(2) {
            return Err(Error::input(format!("found {rows} outputs, expected an even number")).at(fused));
        }
        let x = to.linear(&fused, x)?;
        let parts = fused_split(to, &fused, &[rows / 2; 2], x);
        let inner = to.node(&at("mlp.gate"), Composite::Gate(function), &[parts[0].into(), parts[1].into()]);
        to.linear(&at("mlp.Wo"), inner)
    };
    let x = pre_norm(to, &at("mlp"), |to, x| to.layer_norm(&at("mlp_norm"), x, eps), feed_forward, x)?;
    to.end_block();
    Ok(x)
}

/// Every third layer sees all tokens; the window of other layers is `local_attention` tokens wide, half on each side.
fn settings(config: &Config, index: usize, head_width: usize) -> Result<Attention> {
    let period = config.size("global_attn_every_n_layers")?.unwrap_or(3);
    let kind = config.text_at("layer_types", index);
    let is_global = kind.map_or(index.is_multiple_of(period), |kind| kind == "full_attention");
    let window = config.size("local_attention")?.map(|width| width / 2 + 1).filter(|_| !is_global);
    let kind = if is_global { "full_attention" } else { "sliding_attention" };
    let mut rotary = rotary(config, Some(kind), head_width)?;
    // Files of before transformers 5 have the bases as keys of their own.
    let (key, usual) = if is_global { ("global_rope_theta", 160_000.0) } else { ("local_rope_theta", 10_000.0) };
    let has_parameters = config.object("rope_parameters").is_some() || config.number("rope_theta").is_some();
    rotary.theta = config.number(key).unwrap_or(if has_parameters { rotary.theta } else { usual });
    Ok(Attention { window, rotary: Some(rotary), ..Attention::full(1) })
}

/// The mean of the tokens of a text, without padding: `[batch, tokens, width]` to `[batch, width]`.
fn mean_of_tokens(to: &mut GraphBuilder, shape: [usize; 2], x: ValueId) -> ValueId {
    let shares = to.input_from("token_shares", &[shape[0], shape[1], 1], InputSource::TokenShares);
    let product = Primitive::Elementwise(ElementFunction::Mul);
    let parts = to.node("head.shares", product, &[x.into(), shares.into()]);
    let sum = to.node("head.mean", Primitive::Reduce { axes: vec![1], kind: Reduction::Sum }, &[parts.into()]);
    to.node("head.vector", Composite::TakeToken(0), &[sum.into()])
}

/// The head of masked language models, or of classifiers that read the first token or the mean of all.
fn heads(
    to: &mut GraphBuilder,
    config: &Config,
    (table, extents): (&str, [usize; 2]),
    eps: f64,
    x: ValueId,
) -> Result<Option<ValueId>> {
    if !has(to, "head.dense") {
        return Ok(None);
    }
    let is_classifier = has(to, "classifier");
    let is_of_tokens = is_of_tokens(config);
    let x = if is_classifier && !is_of_tokens && config.text("classifier_pooling") == Some("mean") {
        mean_of_tokens(to, extents, x)
    } else if is_classifier && !is_of_tokens {
        first_token(to, x)
    } else {
        x
    };
    let inner = to.linear("head.dense", x)?;
    let function = activation(config, "classifier_activation", ElementFunction::Gelu)?;
    let inner = to.function("head.activation", function, inner);
    let inner = to.layer_norm("head.norm", inner, eps)?;
    match is_classifier {
        true => classes(to, config, "classifier", inner, inner),
        false => tied_linear(to, table, "decoder", &["decoder.bias"], inner).map(Some),
    }
}
