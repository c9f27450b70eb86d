//! Transformer layers with a plain feed-forward block, and the embeddings of text encoders.

use super::extents::Extents;
use super::layers::{ProjectionNames, attention, feed_forward, n_tokens, post_norm, pre_norm};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{InputSource, ValueId};
use crate::op::{Attention, ElementFunction, Primitive};
use briquette_core::{Error, Result};

/// The paths of a layer's parts below the layer.
pub(super) struct LayerNames<'a> {
    /// The attention, to which the projections are relative.
    pub(super) attention: &'a str,
    pub(super) projections: ProjectionNames<'a>,
    /// The norm before or after attention, then before or after the feed-forward block.
    pub(super) norms: [&'a str; 2],
    pub(super) feed_forward: [&'a str; 2],
    /// Vectors that scale what is added to the residual stream.
    pub(super) scales: Option<[&'a str; 2]>,
}

/// The settings of a layer.
pub(super) struct LayerSettings {
    /// Whether norms come first; else they follow the residual sum.
    pub(super) is_pre_norm: bool,
    pub(super) eps: f64,
    pub(super) head_width: usize,
    pub(super) attention: Attention,
    /// Added to the scores.
    pub(super) bias: Option<ValueId>,
    pub(super) function: ElementFunction,
}

/// Adds a layer as a block: attention and feed-forward layers, each with its norm and residual sum.
pub(super) fn layer(
    to: &mut GraphBuilder,
    path: &str,
    names: &LayerNames,
    settings: &LayerSettings,
    x: ValueId,
) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    to.begin_block(path);
    let own = at(names.attention);
    let attend = |to: &mut GraphBuilder, x| {
        let LayerSettings { head_width, bias, .. } = *settings;
        let x = attention(to, &own, &names.projections, head_width, settings.attention.clone(), bias, x)?;
        scaled(to, names.scales.map(|[first, _]| at(first)), x)
    };
    let [inner, outer] = names.feed_forward.map(at);
    let feed = |to: &mut GraphBuilder, x| {
        let x = feed_forward(to, [&inner, &outer], settings.function, x)?;
        scaled(to, names.scales.map(|[_, second]| at(second)), x)
    };
    let [first, second] = names.norms.map(at);
    let norm = |path: String| move |to: &mut GraphBuilder, x| to.layer_norm(&path, x, settings.eps);
    let x = match settings.is_pre_norm {
        true => {
            let x = pre_norm(to, &own, norm(first), attend, x)?;
            pre_norm(to, path, norm(second), feed, x)?
        }
        false => {
            let x = post_norm(to, &own, norm(first), attend, x)?;
            post_norm(to, path, norm(second), feed, x)?
        }
    };
    to.end_block();
    Ok(x)
}

/// Multiplies channels by a vector.
fn scaled(to: &mut GraphBuilder, vector: Option<String>, x: ValueId) -> Result<ValueId> {
    let Some(name) = vector else { return Ok(x) };
    let weight = to.weight(&name)?;
    Ok(to.node(&name, Primitive::Elementwise(ElementFunction::Mul), &[x.into(), weight.into()]))
}

/// Adds the sum of word, position and segment embeddings, each if the checkpoint has it, and its norm.
pub(super) fn embeddings(
    to: &mut GraphBuilder,
    config: &Config,
    path: &str,
    positions: InputSource,
    eps: f64,
    extents: Extents,
) -> Result<ValueId> {
    if let Some(other) = config.text("position_embedding_type").filter(|kind| *kind != "absolute") {
        let message = format!("position_embedding_type is {other:?}, expected \"absolute\"");
        return Err(Error::input(message).at("config.json"));
    }
    let headers = to.headers();
    let table = |name: &str| headers.get(&format!("{path}.{name}.weight")).map(|info| info.shape.0.clone());
    if let Some(&[vocabulary, _]) = table("word_embeddings").as_deref() {
        config.check("vocab_size", vocabulary, "word_embeddings.weight")?;
    }
    let longest = table("position_embeddings").and_then(|shape| shape.first().copied());
    let first = if let InputSource::PositionIds { offset, .. } = positions { offset } else { 0 };
    let shape = [extents.batch, n_tokens(extents.tokens, longest.map(|rows| rows.saturating_sub(first)))];
    let ids = to.input_from("input_ids", &shape, InputSource::TokenIds);
    let words = to.embedding(&format!("{path}.word_embeddings"), ids)?;
    let places = to.input_from("position_ids", &shape, positions);
    let mut places = to.embedding(&format!("{path}.position_embeddings"), places)?;
    if table("token_type_embeddings").is_some() {
        let types = to.input_from("token_type_ids", &shape, InputSource::TokenTypeIds);
        let types = to.embedding(&format!("{path}.token_type_embeddings"), types)?;
        places = to.add(&format!("{path}.places"), places, types);
    }
    let sum = to.add(&format!("{path}.sum"), words, places);
    to.layer_norm(&format!("{path}.LayerNorm"), sum, eps)
}

/// Checks the width of the residual stream, and returns the width of a head.
pub(super) fn width_of_heads(config: &Config, table: Option<[usize; 2]>, name: &str) -> Result<usize> {
    if let Some([_, width]) = table {
        config.check("hidden_size", width, name)?;
    }
    super::layers::head_width(config.needed("hidden_size")?, config.needed("num_attention_heads")?)
}
