//! DistilBERT: BERT's blocks under names of its own.

use super::encoder::{LayerNames, LayerSettings, embeddings, layer};
use super::extents::Extents;
use super::heads::{VocabularyHead, optional, pooled};
use super::labels::classes;
use super::layers::{ProjectionNames, activation, head_width, n_layers, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction};
use briquette_core::Result;

const FIRST: &str = "transformer.layer.0.attention.q_lin.weight";
const NAMES: LayerNames = LayerNames {
    attention: "attention",
    projections: ProjectionNames { q: "q_lin", k: "k_lin", v: "v_lin", out: "out_lin" },
    norms: ["sa_layer_norm", "output_layer_norm"],
    feed_forward: ["ffn.lin1", "ffn.lin2"],
    scales: None,
};

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "distilbert."].iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["distilbert.", ""], FIRST);
    let mut to = GraphBuilder::new("DistilBERT", headers);
    let (eps, table) = (1e-12, format!("{prefix}embeddings.word_embeddings"));
    if let Some([_, width]) = headers.table(&format!("{table}.weight")) {
        config.check("dim", width, &table)?;
    }
    let positions = InputSource::PositionIds { offset: 0, skips_padding: false };
    let mut x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let (width, heads) = (config.needed("dim")?, config.needed("n_heads")?);
    let function = activation(config, "activation", ElementFunction::Gelu)?;
    let settings = LayerSettings {
        is_pre_norm: false,
        eps,
        head_width: head_width(width, heads)?,
        attention: Attention::full(heads),
        bias: None,
        function,
    };
    let layers = format!("{prefix}transformer.layer.");
    for index in 0..n_layers(&to, config, "n_layers", &layers)? {
        x = layer(&mut to, &format!("{layers}{index}"), &NAMES, &settings, x)?;
    }
    let mut outputs = vec![x];
    let state = pooled(&mut to, "pre_classifier", ElementFunction::Relu, x)?.unwrap_or(x);
    outputs.extend(classes(&mut to, config, "classifier", state, x)?);
    outputs.extend(optional(&mut to, "qa_outputs", x)?);
    let head = VocabularyHead {
        dense: "vocab_transform",
        norm: "vocab_layer_norm",
        decoder: "vocab_projector",
        bias: "vocab_projector.bias",
        table: &table,
        function,
        eps,
    };
    outputs.extend(head.add(&mut to, x)?);
    Ok(to.finish(&outputs))
}
