//! GPT-NeoX and Pythia: one projection with the queries, keys and values of each head, and residual sums side by side.

use super::extents::Extents;
use super::labels::{finish_with_classes, has_classes, predicts_tokens};
use super::layers::{
    Projected, activation, attend, check_causal, feed_forward, fused_kv_heads, head_width, n_layers, n_tokens,
    prefix_of,
};
use super::rotary::rotary;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ElementFunction};
use briquette_core::Result;

const FIRST: &str = "layers.0.attention.query_key_value.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    has_layers(headers) && !has_classes(headers)
}

fn has_layers(headers: &Headers) -> bool {
    headers.has(&format!("gpt_neox.{FIRST}"))
}

/// Returns whether the names are those of a classifier of this family.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    has_layers(headers) && has_classes(headers)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["gpt_neox.", ""], FIRST);
    let mut to = GraphBuilder::new("GPT-NeoX", headers);
    let table = format!("{prefix}embed_in");
    if let Some(&[vocabulary, width]) = headers.get(&format!("{table}.weight")).map(|info| info.shape.0.as_slice()) {
        config.check("vocab_size", vocabulary, &table)?;
        config.check("hidden_size", width, &table)?;
    }
    let tokens = n_tokens(extents.tokens, config.size("max_position_embeddings")?);
    let ids = to.input_from("input_ids", &[extents.batch, tokens], InputSource::TokenIds);
    let mut x = to.embedding(&table, ids)?;
    let eps = config.number("layer_norm_eps").unwrap_or(1e-5);
    let layers = format!("{prefix}layers.");
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = layer(&mut to, config, &format!("{layers}{index}"), eps, x)?;
    }
    x = to.layer_norm(&format!("{prefix}final_layer_norm"), x, eps)?;
    if predicts_tokens(&to, config, "ForCausalLM") {
        if config.flag("tie_word_embeddings") == Some(true) && !headers.has("embed_out.weight") {
            let table = to.weight(&format!("{table}.weight"))?;
            to.alias(table, "embed_out.weight");
        }
        x = to.linear("embed_out", x)?;
        return Ok(to.finish(&[x]));
    }
    finish_with_classes(to, config, x)
}

fn layer(to: &mut GraphBuilder, config: &Config, path: &str, eps: f64, x: ValueId) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let heads = config.needed("num_attention_heads")?;
    let width = head_width(config.needed("hidden_size")?, heads)?;
    let n_out = to.headers().matrix(&at("attention.query_key_value.weight")).map_or(0, |[n_out, _]| n_out);
    let heads = fused_kv_heads(n_out, width, 1, heads);
    check_causal(config)?;
    let usual = Config::parse(Some(br#"{"rotary_pct": 0.25}"#))?;
    let rotary = Some(rotary(&config.clone().with_usual(&usual), None, width)?);
    let settings = Attention { causal: true, rotary, ..Attention::full(heads) };
    let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
    let is_parallel = config.flag("use_parallel_residual") != Some(false);
    to.begin_block(path);
    let normed = to.layer_norm(&at("input_layernorm"), x, eps)?;
    let fused = to.linear(&at("attention.query_key_value"), normed)?;
    let split = Composite::SplitHeads { heads, parts: 3 };
    let parts = to.nodes(&at("attention.split"), split, &[fused.into()], 3);
    let projected = Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads: heads };
    let mixed = attend(to, &at("attention"), &projected, settings, None);
    let mixed = to.linear(&at("attention.dense"), mixed)?;
    let sum = to.add(&at("attention.residual"), x, mixed);
    let inner = to.layer_norm(&at("post_attention_layernorm"), if is_parallel { x } else { sum }, eps)?;
    let names = [at("mlp.dense_h_to_4h"), at("mlp.dense_4h_to_h")];
    let inner = feed_forward(to, [&names[0], &names[1]], function, inner)?;
    let sum = to.add(&at("residual"), sum, inner);
    to.end_block();
    Ok(sum)
}
