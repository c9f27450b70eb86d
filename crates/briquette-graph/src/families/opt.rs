//! OPT: learned positions from 2 on, and ReLU.

use super::encoder::{LayerNames, LayerSettings, layer};
use super::extents::Extents;
use super::heads::{optional, tied_linear};
use super::labels::{finish_with_classes, has_classes, predicts_tokens};
use super::layers::{ProjectionNames, activation, check_causal, head_width, n_layers, n_tokens, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction};
use briquette_core::Result;

const POSITIONS: &str = "embed_positions.weight";
const NAMES: LayerNames = LayerNames {
    attention: "self_attn",
    projections: ProjectionNames { q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj" },
    norms: ["self_attn_layer_norm", "final_layer_norm"],
    feed_forward: ["fc1", "fc2"],
    scales: None,
};

pub(super) fn has_names(headers: &Headers) -> bool {
    has_layers(headers) && !has_classes(headers)
}

fn has_layers(headers: &Headers) -> bool {
    headers.has(&format!("model.decoder.{POSITIONS}")) && !headers.has_prefix("model.encoder.")
}

/// Returns whether the names are those of a classifier of this family.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    has_layers(headers) && has_classes(headers)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["model.decoder.", "decoder.", ""], POSITIONS);
    let at = |name: &str| format!("{prefix}{name}");
    let mut to = GraphBuilder::new("OPT", headers);
    let rows = headers.get(&at(POSITIONS)).and_then(|info| info.shape.0.first().copied());
    let shape = [extents.batch, n_tokens(extents.tokens, rows.map(|rows| rows.saturating_sub(2)))];
    let ids = to.input_from("input_ids", &shape, InputSource::TokenIds);
    let source = InputSource::PositionIds { offset: 2, skips_padding: true };
    let places = to.input_from("position_ids", &shape, source);
    let x = to.embedding(&at("embed_tokens"), ids)?;
    let x = optional(&mut to, &at("project_in"), x)?.unwrap_or(x);
    let places = to.embedding(&at("embed_positions"), places)?;
    let mut x = to.add(&at("embeddings"), x, places);
    check_causal(config)?;
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let settings = LayerSettings {
        is_pre_norm: config.flag("do_layer_norm_before") != Some(false),
        eps: 1e-5,
        head_width: head_width(width, heads)?,
        attention: Attention { causal: true, ..Attention::full(heads) },
        bias: None,
        function: activation(config, "activation_function", ElementFunction::Relu)?,
    };
    let layers = at("layers.");
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = layer(&mut to, &format!("{layers}{index}"), &NAMES, &settings, x)?;
    }
    if headers.has(&at("final_layer_norm.weight")) {
        x = to.layer_norm(&at("final_layer_norm"), x, settings.eps)?;
    }
    x = optional(&mut to, &at("project_out"), x)?.unwrap_or(x);
    if predicts_tokens(&to, config, "ForCausalLM") {
        x = tied_linear(&mut to, &at("embed_tokens"), "lm_head", &[], x)?;
        return Ok(to.finish(&[x]));
    }
    finish_with_classes(to, config, x)
}
