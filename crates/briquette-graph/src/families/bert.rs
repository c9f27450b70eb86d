//! BERT, with Hugging Face's names: embeddings, post-norm blocks, and the heads that the checkpoint has.

use super::extents::Extents;
use super::layers::{ProjectionNames, activation, attention, n_layers, n_tokens, post_norm};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ElementFunction, Primitive};
use briquette_core::{Error, Result};

const LAYERS: &str = "encoder.layer.";

pub(super) fn has_names(headers: &Headers) -> bool {
    ["", "bert."].iter().any(|prefix| headers.has(&format!("{prefix}{LAYERS}0.attention.self.query.weight")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = if headers.has_prefix("bert.") { "bert." } else { "" };
    let embeddings = format!("{prefix}embeddings");
    let extent = |table: &str| headers.get(&format!("{embeddings}.{table}.weight")).map(|info| info.shape.0.clone());
    let words = extent("word_embeddings").filter(|shape| shape.len() == 2).unwrap_or_default();
    if let &[vocabulary, width] = words.as_slice() {
        config.check("vocab_size", vocabulary, "word_embeddings.weight")?;
        config.check("hidden_size", width, "word_embeddings.weight")?;
    }
    let longest = extent("position_embeddings").and_then(|shape| shape.first().copied());
    let shape = [extents.batch, n_tokens(extents.tokens, longest)];

    let mut to = GraphBuilder::new("BERT", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let mut sum = None;
    for (input, table) in [
        ("input_ids", "word_embeddings"),
        ("position_ids", "position_embeddings"),
        ("token_type_ids", "token_type_embeddings"),
    ] {
        let indices = to.input(input, &shape);
        let rows = to.embedding(&format!("{embeddings}.{table}"), indices)?;
        sum = Some(sum.map_or(rows, |sum| to.add(&format!("{embeddings}.sum"), sum, rows)));
    }
    let sum = sum.ok_or_else(|| Error::bug("BERT has embeddings"))?;
    let mut x = to.layer_norm(&format!("{embeddings}.LayerNorm"), sum, eps)?;
    let layers = format!("{prefix}{LAYERS}");
    for layer in 0..n_layers(&to, config, &layers)? {
        x = block(&mut to, config, &format!("{layers}{layer}"), eps, x)?;
    }
    let mut outputs = vec![x];
    outputs.extend(heads(&mut to, config, prefix, eps, x)?);
    Ok(to.finish(&outputs))
}

fn block(to: &mut GraphBuilder, config: &Config, path: &str, eps: f64, x: ValueId) -> Result<ValueId> {
    let names = ProjectionNames { q: "self.query", k: "self.key", v: "self.value", out: "output.dense" };
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let settings = Attention { causal: config.flag("is_decoder") == Some(true), ..Attention::full(heads) };
    if !width.is_multiple_of(heads) {
        let message = format!("{heads} heads (num_attention_heads) do not divide a width of {width} (hidden_size)");
        return Err(Error::input(message).at("config.json"));
    }
    let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
    to.begin_block(path);
    let own = format!("{path}.attention");
    let x = post_norm(
        to,
        &own,
        |to, x| to.layer_norm(&format!("{own}.output.LayerNorm"), x, eps),
        |to, x| attention(to, &own, &names, width / heads, settings, x),
        x,
    )?;
    let x = post_norm(
        to,
        path,
        |to, x| to.layer_norm(&format!("{path}.output.LayerNorm"), x, eps),
        |to, x| {
            let inner = to.linear(&format!("{path}.intermediate.dense"), x)?;
            let inner = to.function(&format!("{path}.intermediate.activation"), function, inner);
            to.linear(&format!("{path}.output.dense"), inner)
        },
        x,
    )?;
    to.end_block();
    Ok(x)
}

/// The pooler and the heads of tasks, each if the checkpoint has it.
fn heads(to: &mut GraphBuilder, config: &Config, prefix: &str, eps: f64, x: ValueId) -> Result<Vec<ValueId>> {
    let mut outputs = Vec::new();
    let has = |to: &GraphBuilder, path: &str| to.headers().has(&format!("{path}.weight"));
    let pooler = format!("{prefix}pooler.dense");
    let mut state = x;
    if has(to, &pooler) {
        let first = to.node("first_token", Primitive::Slice { axis: 1, start: 0, len: 1 }, &[x.into()]);
        let pooled = to.linear(&pooler, first)?;
        state = to.function(&format!("{prefix}pooler.activation"), ElementFunction::Tanh, pooled);
        outputs.push(state);
    }
    for (path, input) in [("cls.seq_relationship", state), ("classifier", state), ("qa_outputs", x)] {
        if has(to, path) {
            outputs.push(to.linear(path, input)?);
        }
    }
    if has(to, "cls.predictions.transform.dense") {
        let inner = to.linear("cls.predictions.transform.dense", x)?;
        let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
        let inner = to.function("cls.predictions.transform.activation", function, inner);
        let inner = to.layer_norm("cls.predictions.transform.LayerNorm", inner, eps)?;
        outputs.push(vocabulary_head(to, prefix, inner)?);
    }
    Ok(outputs)
}

/// The head over the vocabulary: its own matrix, or the embedding once more.
fn vocabulary_head(to: &mut GraphBuilder, prefix: &str, x: ValueId) -> Result<ValueId> {
    let decoder = "cls.predictions.decoder.weight";
    if !to.headers().has(decoder) {
        let table = to.weight(&format!("{prefix}embeddings.word_embeddings.weight"))?;
        to.alias(table, decoder);
    }
    let weight = to.weight(decoder)?;
    let bias = ["cls.predictions.bias", "cls.predictions.decoder.bias"].into_iter().find(|name| to.headers().has(name));
    let mut inputs = vec![x.into(), weight.into()];
    if let Some(bias) = bias {
        let bias = to.weight(bias)?;
        to.alias(bias, "cls.predictions.decoder.bias");
        inputs.push(bias.into());
    }
    Ok(to.node("cls.predictions.decoder", Composite::Linear, &inputs))
}
