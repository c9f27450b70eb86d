//! Whisper: two convolutions over a spectrogram, then an encoder and a decoder with the layers of mBART.

use super::bart::BartStack;
use super::extents::Extents;
use super::heads::tied_linear;
use super::labels::predicts_tokens;
use super::layers::{n_tokens, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, Primitive};
use briquette_core::{Error, Result};

const FIRST: &str = "encoder.conv1.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    let has = |name: &str| ["model.", ""].iter().any(|prefix| headers.has(&format!("{prefix}{name}")));
    has(FIRST) && has("decoder.layers.0.encoder_attn.q_proj.weight")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["model.", ""], FIRST);
    let at = |name: &str| format!("{prefix}{name}");
    let mut to = GraphBuilder::new("Whisper", headers);
    let y = words(&mut to, config, &at("decoder"), extents)?;
    let x = sounds(&mut to, config, &at("encoder"), extents.batch)?;
    let encoded = BartStack::of(config, true, &at("encoder"), None)?.add(&mut to, config, x)?;
    let y = BartStack::of(config, true, &at("decoder"), Some(encoded))?.add(&mut to, config, y)?;
    if !predicts_tokens(&to, config, "ForConditionalGeneration") {
        return Ok(to.finish(&[y]));
    }
    let logits = tied_linear(&mut to, &at("decoder.embed_tokens"), "proj_out", &[], y)?;
    Ok(to.finish(&[logits]))
}

/// The sum of the target's words and positions.
fn words(to: &mut GraphBuilder, config: &Config, path: &str, extents: Extents) -> Result<ValueId> {
    let [table, places] = ["embed_tokens", "embed_positions"].map(|name| format!("{path}.{name}"));
    if let Some([vocabulary, width]) = to.headers().table(&format!("{table}.weight")) {
        config.check("vocab_size", vocabulary, &table)?;
        config.check("d_model", width, &table)?;
    }
    let rows = to.headers().table(&format!("{places}.weight")).map(|[rows, _]| rows);
    let shape = [extents.batch, n_tokens(extents.tokens, rows)];
    let ids = to.input_from("decoder_input_ids", &shape, InputSource::TargetIds);
    let x = to.embedding(&table, ids)?;
    let positions = to.input_from("decoder_position_ids", &shape, InputSource::TargetPositionIds { offset: 0 });
    let positions = to.embedding(&places, positions)?;
    Ok(to.add(&format!("{path}.embeddings"), x, positions))
}

/// Frames of the encoder: the second convolution halves their number, which is that of the positions.
fn sounds(to: &mut GraphBuilder, config: &Config, path: &str, batch: usize) -> Result<ValueId> {
    let places = format!("{path}.embed_positions.weight");
    let shape = |name: &str| to.headers().get(name).map(|info| info.shape.0.clone()).unwrap_or_default();
    let (rows, filters) = (shape(&places), shape(&format!("{path}.conv1.weight")));
    let (&[rows, _], &[_, mels, _]) = (rows.as_slice(), filters.as_slice()) else {
        let message = format!("found {rows:?} and filters {filters:?}, expected [frames, width] and [out, mels, 3]");
        return Err(Error::input(message).at(places));
    };
    config.check("max_source_positions", rows, &places)?;
    config.check("num_mel_bins", mels, &format!("{path}.conv1.weight"))?;
    let mut x = to.input_from("input_features", &[batch, mels, rows.saturating_mul(2)], InputSource::SoundFeatures);
    for (layer, stride) in [("conv1", 1), ("conv2", 2)] {
        let layer = format!("{path}.{layer}");
        let settings =
            ConvSettings { stride: vec![stride], padding: vec![1], dilation: vec![1], groups: 1, transposed: false };
        x = to.conv(&layer, x, settings)?;
        x = to.function(&format!("{layer}.activation"), ElementFunction::Gelu, x);
    }
    let x = to.node(&format!("{path}.frames"), Primitive::Transpose(vec![0, 2, 1]), &[x.into()]);
    let places = to.weight(&places)?;
    Ok(to.node(&format!("{path}.embeddings"), Primitive::Elementwise(ElementFunction::Add), &[x.into(), places.into()]))
}
