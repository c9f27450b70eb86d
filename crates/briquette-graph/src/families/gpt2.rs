//! GPT-2: learned positions, pre-norm blocks, weights stored `[in, out]`, one layer for queries, keys and values.

use super::extents::Extents;
use super::heads::tied_linear;
use super::labels::{finish_with_classes, has_classes, predicts_tokens};
use super::layers::{
    Projected, activation, attend, check_causal, fused_kv_heads, fused_split, head_width, n_layers, n_tokens, pre_norm,
    prefix_of,
};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction};
use briquette_core::Result;

const FIRST: &str = "h.0.attn.c_attn.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    has_layers(headers) && !has_classes(headers)
}

fn has_layers(headers: &Headers) -> bool {
    ["", "transformer."].iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}")))
}

/// Returns whether the names are those of a classifier of this family.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    has_layers(headers) && has_classes(headers)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["transformer.", ""], FIRST);
    let mut to = GraphBuilder::new("GPT-2", headers);
    let eps = config.number("layer_norm_epsilon").unwrap_or(1e-5);
    let [words, positions] = ["wte", "wpe"].map(|table| format!("{prefix}{table}"));
    let rows = |path: &str| headers.get(&format!("{path}.weight")).and_then(|info| info.shape.0.first().copied());
    if let Some(&[vocabulary, width]) = headers.get(&format!("{words}.weight")).map(|info| info.shape.0.as_slice()) {
        config.check("vocab_size", vocabulary, "wte.weight")?;
        config.check("n_embd", width, "wte.weight")?;
    }
    let shape = [extents.batch, n_tokens(extents.tokens, rows(&positions))];
    let ids = to.input_from("input_ids", &shape, InputSource::TokenIds);
    let source = InputSource::PositionIds { offset: 0, skips_padding: false };
    let places = to.input_from("position_ids", &shape, source);
    let (x, places) = (to.embedding(&words, ids)?, to.embedding(&positions, places)?);
    let mut x = to.add(&format!("{prefix}embeddings"), x, places);
    let layers = format!("{prefix}h.");
    for index in 0..n_layers(&to, config, "n_layer", &layers)? {
        x = layer(&mut to, config, &layers, index, eps, x)?;
    }
    x = to.layer_norm(&format!("{prefix}ln_f"), x, eps)?;
    if predicts_tokens(&to, config, "LMHeadModel") {
        x = tied_linear(&mut to, &words, "lm_head", &[], x)?;
        return Ok(to.finish(&[x]));
    }
    finish_with_classes(to, config, x)
}

fn layer(to: &mut GraphBuilder, config: &Config, layers: &str, index: usize, eps: f64, x: ValueId) -> Result<ValueId> {
    let path = format!("{layers}{index}");
    let at = |name: &str| format!("{path}.{name}");
    let heads = config.needed("n_head")?;
    let head_width = head_width(config.needed("n_embd")?, heads)?;
    let n_out = to.headers().table(&at("attn.c_attn.weight")).map_or(0, |[_, n_out]| n_out);
    let heads = fused_kv_heads(n_out, head_width, 1, heads);
    let mut scale = match config.flag("scale_attn_weights") {
        Some(false) => 1.0,
        _ => 1.0 / (head_width as f64).sqrt(),
    };
    if config.flag("scale_attn_by_inverse_layer_idx") == Some(true) {
        scale /= (index + 1) as f64;
    }
    check_causal(config)?;
    let settings = Attention { causal: true, scale: Some(scale), ..Attention::full(heads) };
    let function = activation(config, "activation_function", ElementFunction::GeluTanh)?;
    to.begin_block(&path);
    let attention = |to: &mut GraphBuilder, x| {
        let fused = to.turned_linear(&at("attn.c_attn"), x)?;
        let parts = fused_split(to, &at("attn.c_attn"), &[heads.saturating_mul(head_width); 3], fused);
        let projected = Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads: heads };
        let mixed = attend(to, &at("attn"), &projected, settings, None);
        to.turned_linear(&at("attn.c_proj"), mixed)
    };
    let x = pre_norm(to, &at("attn"), |to, x| to.layer_norm(&at("ln_1"), x, eps), attention, x)?;
    let feed_forward = |to: &mut GraphBuilder, x| {
        let x = to.turned_linear(&at("mlp.c_fc"), x)?;
        let x = to.function(&at("mlp.activation"), function, x);
        to.turned_linear(&at("mlp.c_proj"), x)
    };
    let x = pre_norm(to, &at("mlp"), |to, x| to.layer_norm(&at("ln_2"), x, eps), feed_forward, x)?;
    to.end_block();
    Ok(x)
}
