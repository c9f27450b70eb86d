//! Gemma 1 to 3: Llama's names, norm weights that are added to 1, scaled embeddings, and gates with GELU.

use super::decoder::{self, Style};
use super::extents::Extents;
use crate::config::Config;
use crate::graph::Graph;
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

/// Names do not tell Gemma 1 from Llama.
pub(super) fn has_names(_headers: &Headers) -> bool {
    false
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
    decoder::build(headers, config, extents, &style)
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
