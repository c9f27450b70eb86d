//! BERT, with Hugging Face's names: embeddings, post-norm blocks, and the heads that the checkpoint has.

use super::encoder::{LayerNames, LayerSettings, embeddings, layer, width_of_heads};
use super::extents::Extents;
use super::heads::{VocabularyHead, optional, pooled};
use super::labels::classes;
use super::layers::{ProjectionNames, activation, n_layers, prefix_of};
use super::sizes::TensorShapes;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction};
use briquette_core::Result;

const FIRST: &str = "encoder.layer.0.attention.self.query.weight";

/// The names of BERT's layers, which RoBERTa and ELECTRA share.
pub(super) const NAMES: LayerNames = LayerNames {
    attention: "attention",
    projections: ProjectionNames { q: "self.query", k: "self.key", v: "self.value", out: "output.dense" },
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    feed_forward: ["intermediate.dense", "output.dense"],
    scales: None,
};

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "bert."].iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}")))
}

/// Lists the tensors of an encoder without heads.
pub(super) fn tensors(config: &Config, like: &Headers) -> Result<TensorShapes> {
    let prefix = prefix_of(like, &["bert.", ""], FIRST);
    let [width, inner] = [config.needed("hidden_size")?, config.needed("intermediate_size")?];
    let tables = [
        ("word", config.needed("vocab_size")?),
        ("position", config.needed("max_position_embeddings")?),
        ("token_type", config.size("type_vocab_size")?.unwrap_or(2)),
    ];
    let mut to = TensorShapes::default();
    for (name, rows) in tables {
        to.weight(&format!("{prefix}embeddings.{name}_embeddings"), &[rows, width]);
    }
    to.layer(&format!("{prefix}embeddings.LayerNorm"), &[width]);
    for index in 0..config.layers("num_hidden_layers")? {
        let at = |name: &str| format!("{prefix}encoder.layer.{index}.{name}");
        for name in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
            to.layer(&at(name), &[width, width]);
        }
        to.layer(&at(NAMES.feed_forward[0]), &[inner, width]);
        to.layer(&at(NAMES.feed_forward[1]), &[width, inner]);
        NAMES.norms.iter().for_each(|norm| to.layer(&at(norm), &[width]));
    }
    Ok(to)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["bert.", ""], FIRST);
    let mut to = GraphBuilder::new("BERT", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let positions = InputSource::PositionIds { offset: 0, skips_padding: false };
    let table = format!("{prefix}embeddings.word_embeddings");
    let head_width = width_of_heads(config, headers.table(&format!("{table}.weight")), "word_embeddings.weight")?;
    let x = embeddings(&mut to, config, &format!("{prefix}embeddings"), positions, eps, extents)?;
    let x = layers(&mut to, config, &format!("{prefix}encoder.layer."), head_width, eps, x)?;
    let mut outputs = vec![x];
    outputs.extend(heads(&mut to, config, prefix, &table, eps, x)?);
    Ok(to.finish(&outputs))
}

/// Adds all layers of BERT's names.
pub(super) fn layers(
    to: &mut GraphBuilder,
    config: &Config,
    path: &str,
    head_width: usize,
    eps: f64,
    mut x: ValueId,
) -> Result<ValueId> {
    let causal = config.flag("is_decoder") == Some(true);
    let settings = LayerSettings {
        is_pre_norm: false,
        eps,
        head_width,
        attention: Attention { causal, ..Attention::full(1) },
        bias: None,
        function: activation(config, "hidden_act", ElementFunction::Gelu)?,
    };
    for index in 0..n_layers(to, config, "num_hidden_layers", path)? {
        x = layer(to, &format!("{path}{index}"), &NAMES, &settings, x)?;
    }
    Ok(x)
}

/// The pooler and the heads of tasks.
fn heads(
    to: &mut GraphBuilder,
    config: &Config,
    prefix: &str,
    table: &str,
    eps: f64,
    x: ValueId,
) -> Result<Vec<ValueId>> {
    let pooled = pooled(to, &format!("{prefix}pooler.dense"), ElementFunction::Tanh, x)?;
    let state = pooled.unwrap_or(x);
    let mut outputs = Vec::from_iter(pooled);
    outputs.extend(optional(to, "cls.seq_relationship", state)?);
    outputs.extend(classes(to, config, "classifier", state, x)?);
    outputs.extend(optional(to, "qa_outputs", x)?);
    let head = VocabularyHead {
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        decoder: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
        table,
        function: activation(config, "hidden_act", ElementFunction::Gelu)?,
        eps,
    };
    outputs.extend(head.add(to, x)?);
    Ok(outputs)
}
