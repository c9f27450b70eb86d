//! Gemma 1 to 3, and the text part of Gemma 3 with images: Llama's names, norm weights that are added to 1, scaled embeddings, and gates with GELU.

use super::decoder::{self, Style};
use super::extents::Extents;
use crate::config::Config;
use crate::graph::Graph;
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

const USUAL_TEXT: &str = r#"{"model_type": "gemma3_text", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 131072, "tie_word_embeddings": true}"#;
const USUAL_ROTARY: &str = r#"{"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#;

/// Names do not tell Gemma 1 from Llama.
pub(super) fn has_names(_headers: &Headers) -> bool {
    false
}

pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    decoder::has_encoder_names(headers)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let style = Style {
        family: "Gemma",
        norm_offset: 1.0,
        has_scaled_embeddings: true,
        is_tied: true,
        function: ElementFunction::GeluTanh,
        is_sliding,
    };
    match config.object("text_config") {
        Some(text) => decoder::build(headers, &with_usual(text)?, extents, &style),
        None if config.model_type() == Some("gemma3_text") => {
            decoder::build(headers, &with_usual_rotary(config.clone())?, extents, &style)
        }
        None => decoder::build(headers, config, extents, &style),
    }
}

/// Adds the settings that the text part of Gemma 3 has where `config.json` of a model for images leaves them out.
fn with_usual(text: Config) -> Result<Config> {
    let usual = Config::parse(Some(USUAL_TEXT.as_bytes()))?;
    with_usual_rotary(text.with_usual(&usual))
}

/// Adds the bases of rotary positions where `config.json` leaves them out.
fn with_usual_rotary(text: Config) -> Result<Config> {
    match text.object("rope_parameters") {
        Some(_) => Ok(text),
        None => Ok(text.with_usual(&Config::parse(Some(USUAL_ROTARY.as_bytes()))?)),
    }
}

/// Gemma 2 limits the window of every other layer, Gemma 3 of all but every sixth.
fn is_sliding(config: &Config, layer: usize) -> bool {
    match config.model_type() {
        Some("gemma2") => layer.is_multiple_of(2),
        Some("gemma3_text") => {
            let period = config.number("sliding_window_pattern").map_or(6, |n| n.clamp(1.0, 1e6) as usize);
            !(layer + 1).is_multiple_of(period)
        }
        _ => false,
    }
}
