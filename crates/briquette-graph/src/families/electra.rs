//! ELECTRA: BERT's layers after a projection of narrow embeddings.

use super::bert::layers;
use super::encoder::{embeddings, width_of_heads};
use super::extents::Extents;
use super::heads::{VocabularyHead, has, optional};
use super::labels::classifier;
use super::layers::{activation, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::ElementFunction;
use briquette_core::Result;

const FIRST: &str = "encoder.layer.0.attention.self.query.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has(&format!("electra.{FIRST}"))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["electra.", ""], FIRST);
    let mut to = GraphBuilder::new("ELECTRA", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let positions = InputSource::PositionIds { offset: 0, skips_padding: false };
    let x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let x = optional(&mut to, &format!("{prefix}embeddings_project"), x)?.unwrap_or(x);
    let head_width = width_of_heads(config, None, "")?;
    let x = layers(&mut to, config, &format!("{prefix}encoder.layer."), head_width, eps, x)?;
    let mut outputs = vec![x];
    outputs.extend(classifier(&mut to, config, ElementFunction::Gelu, x)?);
    outputs.extend(optional(&mut to, "qa_outputs", x)?);
    let discriminator = "discriminator_predictions";
    if has(&to, &format!("{discriminator}.dense")) {
        let inner = to.linear(&format!("{discriminator}.dense"), x)?;
        let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
        let inner = to.function(&format!("{discriminator}.activation"), function, inner);
        outputs.push(to.linear(&format!("{discriminator}.dense_prediction"), inner)?);
    }
    let head = VocabularyHead {
        dense: "generator_predictions.dense",
        norm: "generator_predictions.LayerNorm",
        decoder: "generator_lm_head",
        bias: "generator_lm_head.bias",
        table: &format!("{prefix}embeddings.word_embeddings"),
        function: ElementFunction::Gelu,
        eps,
    };
    outputs.extend(head.add(&mut to, x)?);
    Ok(to.finish(&outputs))
}
