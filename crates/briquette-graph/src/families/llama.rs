//! Llama, Mistral and Qwen2, with Hugging Face's names: pre-norm blocks, rotary attention, gated feed-forward layers.

use super::extents::Extents;
use super::layers::{ProjectionNames, activation, attention, gated, n_layers, n_tokens, pre_norm};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ElementFunction, Rotary, RotaryScaling};
use briquette_core::{Error, Result};

const LAYERS: &str = "model.layers.";
const TABLE: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("model.layers.0.self_attn.q_proj.weight")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    if let Some(&[vocabulary, width]) = headers.get(TABLE).map(|info| info.shape.0.as_slice()) {
        config.check("vocab_size", vocabulary, TABLE)?;
        config.check("hidden_size", width, TABLE)?;
    }
    let tokens = n_tokens(extents.tokens, config.size("max_position_embeddings")?);
    let mut to = GraphBuilder::new("Llama", headers);
    let eps = config.number("rms_norm_eps").unwrap_or(1e-6);
    let ids = to.input("input_ids", &[extents.batch, tokens]);
    let mut x = to.embedding("model.embed_tokens", ids)?;
    for layer in 0..n_layers(&to, config, LAYERS)? {
        x = block(&mut to, config, &format!("{LAYERS}{layer}"), eps, x)?;
    }
    let x = to.rms_norm("model.norm", x, eps)?;
    let logits = head(&mut to, config, x)?;
    Ok(to.finish(&[logits]))
}

fn block(to: &mut GraphBuilder, config: &Config, path: &str, eps: f64, x: ValueId) -> Result<ValueId> {
    let names = ProjectionNames { q: "q_proj", k: "k_proj", v: "v_proj", out: "o_proj" };
    let heads = config.needed("num_attention_heads")?;
    let width = match config.size("head_dim")? {
        Some(width) => width,
        None => config.needed("hidden_size")? / heads,
    };
    if width == 0 || !width.is_multiple_of(2) {
        return Err(Error::input(format!("heads have a width of {width}, expected an even width")).at("config.json"));
    }
    let uses_window = config.flag("use_sliding_window") != Some(false);
    let window = config.size("sliding_window")?.filter(|_| uses_window);
    let settings = Attention { causal: true, window, rotary: Some(rotary(config)?), ..Attention::full(heads) };
    let function = activation(config, "hidden_act", ElementFunction::Silu)?;
    to.begin_block(path);
    let (own, inner) = (format!("{path}.self_attn"), format!("{path}.mlp"));
    let x = pre_norm(
        to,
        &own,
        |to, x| to.rms_norm(&format!("{path}.input_layernorm"), x, eps),
        |to, x| attention(to, &own, &names, width, settings, x),
        x,
    )?;
    let x = pre_norm(
        to,
        &inner,
        |to, x| to.rms_norm(&format!("{path}.post_attention_layernorm"), x, eps),
        |to, x| gated(to, &inner, ["gate_proj", "up_proj", "down_proj"], function, x),
        x,
    )?;
    to.end_block();
    Ok(x)
}

fn rotary(config: &Config) -> Result<Rotary> {
    let rope = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| config.object(key));
    let number = |key: &str| rope.as_ref().and_then(|rope| rope.number(key));
    let theta = number("rope_theta").or(config.number("rope_theta")).unwrap_or(10_000.0);
    let kind = rope.as_ref().and_then(|rope| rope.text("rope_type").or(rope.text("type"))).unwrap_or("default");
    let factor = number("factor").unwrap_or(1.0);
    let scaling = match kind {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear(factor),
        "llama3" => RotaryScaling::Llama3 {
            factor,
            low: number("low_freq_factor").unwrap_or(1.0),
            high: number("high_freq_factor").unwrap_or(4.0),
            original: number("original_max_position_embeddings").unwrap_or(8192.0),
        },
        other => return Err(Error::input(format!("rope_type is {other:?}, which is not known")).at("config.json")),
    };
    Ok(Rotary { theta, scaling })
}

/// The head over the vocabulary: its own matrix, or the embedding where `config.json` ties them.
fn head(to: &mut GraphBuilder, config: &Config, x: ValueId) -> Result<ValueId> {
    if config.flag("tie_word_embeddings") == Some(true) {
        let table = to.weight(TABLE)?;
        to.alias(table, HEAD);
    }
    let weight = to.weight(HEAD)?;
    Ok(to.node("lm_head", Composite::Linear, &[x.into(), weight.into()]))
}
