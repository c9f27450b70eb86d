//! ALBERT: narrow embeddings, and layers that share their weights.

use super::encoder::{LayerNames, LayerSettings, embeddings, layer, width_of_heads};
use super::extents::Extents;
use super::heads::{VocabularyHead, optional, pooled};
use super::labels::classes;
use super::layers::{ProjectionNames, activation, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction};
use briquette_core::{Error, Result};

const PROJECTION: &str = "encoder.embedding_hidden_mapping_in";
const MOST_LAYERS: usize = 1000;
const NAMES: LayerNames = LayerNames {
    attention: "attention",
    projections: ProjectionNames { q: "query", k: "key", v: "value", out: "dense" },
    norms: ["attention.LayerNorm", "full_layer_layer_norm"],
    feed_forward: ["ffn", "ffn_output"],
    scales: None,
};

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "albert."].iter().any(|prefix| headers.has(&format!("{prefix}{PROJECTION}.weight")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["albert.", ""], &format!("{PROJECTION}.weight"));
    let mut to = GraphBuilder::new("ALBERT", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let positions = InputSource::PositionIds { offset: 0, skips_padding: false };
    let x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let mut x = to.linear(&format!("{prefix}{PROJECTION}"), x)?;
    let function = activation(config, "hidden_act", ElementFunction::GeluTanh)?;
    let head_width = width_of_heads(config, None, "")?;
    let settings =
        LayerSettings { is_pre_norm: false, eps, head_width, attention: Attention::full(1), bias: None, function };
    let groups = format!("{prefix}encoder.albert_layer_groups.");
    let (n_layers, n_groups) = (config.needed("num_hidden_layers")?, headers.count(&groups).max(1));
    // No tensor shows how often the layers repeat.
    if n_layers > MOST_LAYERS {
        let message = format!("num_hidden_layers is {n_layers}, expected up to {MOST_LAYERS}");
        return Err(Error::input(message).at("config.json"));
    }
    for index in 0..n_layers {
        let group = format!("{groups}{}.albert_layers.", index * n_groups / n_layers);
        for part in 0..headers.count(&group).max(1) {
            x = layer(&mut to, &format!("{group}{part}"), &NAMES, &settings, x)?;
        }
    }
    let mut outputs = vec![x];
    let state = pooled(&mut to, &format!("{prefix}pooler"), ElementFunction::Tanh, x)?;
    outputs.extend(state);
    outputs.extend(classes(&mut to, config, "classifier", state.unwrap_or(x), x)?);
    outputs.extend(optional(&mut to, "sop_classifier.classifier", state.unwrap_or(x))?);
    outputs.extend(optional(&mut to, "qa_outputs", x)?);
    let head = VocabularyHead {
        dense: "predictions.dense",
        norm: "predictions.LayerNorm",
        decoder: "predictions.decoder",
        bias: "predictions.bias",
        table: &format!("{prefix}embeddings.word_embeddings"),
        function,
        eps,
    };
    outputs.extend(head.add(&mut to, x)?);
    Ok(to.finish(&outputs))
}
