//! RoBERTa, XLM-RoBERTa and CamemBERT: BERT's layers, positions that skip padding, and heads of their own.

use super::bert::layers;
use super::encoder::{embeddings, width_of_heads};
use super::extents::Extents;
use super::heads::{VocabularyHead, optional, pooled};
use super::labels::classifier;
use super::layers::prefix_of;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

const FIRST: &str = "encoder.layer.0.attention.self.query.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has(&format!("roberta.{FIRST}"))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["roberta.", ""], FIRST);
    let mut to = GraphBuilder::new("RoBERTa", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let padding = config.number("pad_token_id").map_or(1, |id| id.clamp(0.0, 1e9) as usize);
    let positions = InputSource::PositionIds { offset: padding + 1, skips_padding: true };
    let table = format!("{prefix}embeddings.word_embeddings");
    let head_width = width_of_heads(config, headers.table(&format!("{table}.weight")), "word_embeddings.weight")?;
    let x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let x = layers(&mut to, config, &format!("{prefix}encoder.layer."), head_width, eps, x)?;
    finish_with_heads(to, config, [prefix, &table], eps, x)
}

/// Finishes a graph with the heads of RoBERTa: pooler, classifier, answers and vocabulary.
///
/// `prefix` is the path of the encoder, and `table` its embedding of words.
pub(super) fn finish_with_heads(
    mut to: GraphBuilder,
    config: &Config,
    [prefix, table]: [&str; 2],
    eps: f64,
    x: ValueId,
) -> Result<Graph> {
    let mut outputs = vec![x];
    outputs.extend(pooled(&mut to, &format!("{prefix}pooler.dense"), ElementFunction::Tanh, x)?);
    outputs.extend(classifier(&mut to, config, ElementFunction::Tanh, x)?);
    outputs.extend(optional(&mut to, "qa_outputs", x)?);
    let head = VocabularyHead {
        dense: "lm_head.dense",
        norm: "lm_head.layer_norm",
        decoder: "lm_head.decoder",
        bias: "lm_head.bias",
        table,
        function: ElementFunction::Gelu,
        eps,
    };
    outputs.extend(head.add(&mut to, x)?);
    Ok(to.finish(&outputs))
}
