//! Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Phi-3, OLMo 2, SmolLM3 and Granite, with Hugging Face's names.

use super::decoder::{self, Style};
use super::extents::Extents;
use crate::config::Config;
use crate::graph::Graph;
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("model.layers.0.self_attn.q_proj.weight")
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

/// Qwen2 limits the window of later layers, other models limit all layers or none.
fn is_sliding(config: &Config, layer: usize) -> bool {
    let first = match config.flag("use_sliding_window") {
        Some(false) => return false,
        Some(true) => config.number("max_window_layers").unwrap_or(0.0),
        None => 0.0,
    };
    layer as f64 >= first
}
