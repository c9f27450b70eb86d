//! Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Phi-3, OLMo 2, SmolLM3 and Granite, with Hugging Face's names.

use super::decoder::{self, Style};
use super::extents::Extents;
use super::layers::{head_width, prefix_of};
use super::sizes::TensorShapes;
use crate::config::Config;
use crate::graph::Graph;
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("model.layers.0.self_attn.q_proj.weight") && !decoder::has_encoder_names(headers)
}

/// Returns whether the names are those of a classifier or an embedding model.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    decoder::has_encoder_names(headers)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let style = Style {
        family: "Llama",
        norm_offset: 0.0,
        has_scaled_embeddings: false,
        is_tied: false,
        function: ElementFunction::Silu,
        is_sliding,
    };
    decoder::build(headers, config, extents, &style)
}

/// Lists the tensors of a decoder with biases where `like` has them.
pub(super) fn tensors(config: &Config, like: &Headers) -> Result<TensorShapes> {
    let prefix = prefix_of(like, &["", "model."], "embed_tokens.weight");
    let [width, inner] = [config.needed("hidden_size")?, config.needed("intermediate_size")?];
    let (vocabulary, heads) = (config.needed("vocab_size")?, config.needed("num_attention_heads")?);
    let kv_heads = config.size("num_key_value_heads")?.unwrap_or(heads);
    let head = config.size("head_dim")?.map_or_else(|| head_width(width, heads), Ok)?;
    let (wide, narrow) = (heads.saturating_mul(head), kv_heads.saturating_mul(head));
    let layers = [
        ("self_attn.q_proj", [wide, width]),
        ("self_attn.k_proj", [narrow, width]),
        ("self_attn.v_proj", [narrow, width]),
        ("self_attn.o_proj", [width, wide]),
        ("mlp.gate_proj", [inner, width]),
        ("mlp.up_proj", [inner, width]),
        ("mlp.down_proj", [width, inner]),
    ];
    let mut to = TensorShapes::default();
    to.weight(&format!("{prefix}embed_tokens"), &[vocabulary, width]);
    for index in 0..config.layers("num_hidden_layers")? {
        for (name, shape) in layers {
            let has_bias = like.has(&format!("{prefix}layers.0.{name}.bias"));
            to.linear(&format!("{prefix}layers.{index}.{name}"), shape, has_bias);
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            to.weight(&format!("{prefix}layers.{index}.{norm}"), &[width]);
        }
    }
    to.weight(&format!("{prefix}norm"), &[width]);
    if config.flag("tie_word_embeddings") != Some(true) {
        to.weight("lm_head", &[vocabulary, width]);
    }
    Ok(to)
}

/// Qwen2 and Qwen3 limit the window of later layers if a key says so, other models limit all layers or none.
fn is_sliding(config: &Config, layer: usize) -> bool {
    let is_qwen = config.model_type().is_some_and(|name| name.starts_with("qwen"));
    match config.flag("use_sliding_window") {
        Some(false) => false,
        None => !is_qwen,
        Some(true) if config.model_type() == Some("qwen3_moe") => true,
        Some(true) => layer as f64 >= config.number("max_window_layers").unwrap_or(if is_qwen { 28.0 } else { 0.0 }),
    }
}
