//! MPNet: post-norm blocks with one table of relative position biases.

use super::encoder::{LayerNames, LayerSettings, embeddings, layer, width_of_heads};
use super::extents::Extents;
use super::layers::{ProjectionNames, activation, n_layers, prefix_of};
use super::roberta::finish_with_heads;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction, Primitive};
use briquette_core::Result;

const TABLE: &str = "encoder.relative_attention_bias";
const NAMES: LayerNames = LayerNames {
    attention: "attention",
    projections: ProjectionNames { q: "attn.q", k: "attn.k", v: "attn.v", out: "attn.o" },
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    feed_forward: ["intermediate.dense", "output.dense"],
    scales: None,
};

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "mpnet."].iter().any(|prefix| headers.has(&format!("{prefix}{TABLE}.weight")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["mpnet.", ""], &format!("{TABLE}.weight"));
    let mut to = GraphBuilder::new("MPNet", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let positions = InputSource::PositionIds { offset: 2, skips_padding: true };
    let table = format!("{prefix}embeddings.word_embeddings");
    let head_width = width_of_heads(config, headers.table(&format!("{table}.weight")), "word_embeddings.weight")?;
    let mut x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
    let bias = Some(relative_bias(&mut to, &format!("{prefix}{TABLE}"))?);
    let settings = LayerSettings { is_pre_norm: false, eps, head_width, attention: Attention::full(1), bias, function };
    let layers = format!("{prefix}encoder.layer.");
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = layer(&mut to, &format!("{layers}{index}"), &NAMES, &settings, x)?;
    }
    finish_with_heads(to, config, [prefix, &table], eps, x)
}

/// A bias for each head and each distance, `[heads, tokens, tokens]`.
fn relative_bias(to: &mut GraphBuilder, path: &str) -> Result<ValueId> {
    let buckets = to.headers().get(&format!("{path}.weight")).and_then(|info| info.shape.0.first().copied());
    let tokens = to.n_tokens();
    let source = InputSource::RelativeBuckets { buckets: buckets.unwrap_or(32), longest: 128 };
    let indices = to.input_from("relative_buckets", &[tokens; 2], source);
    let rows = to.embedding(path, indices)?;
    Ok(to.node(&format!("{path}.by_head"), Primitive::Transpose(vec![2, 0, 1]), &[rows.into()]))
}
