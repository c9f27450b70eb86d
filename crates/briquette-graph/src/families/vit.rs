//! Vision transformers, with Hugging Face's names: ViT, DeiT and DINOv2.

use super::encoder::{LayerNames, LayerSettings, layer};
use super::extents::Extents;
use super::heads::{first_token, optional, pooled};
use super::layers::{ProjectionNames, activation, head_width, n_layers};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, Operand, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ConvSettings, ElementFunction, Primitive, Reduction};
use briquette_core::{Error, Result};

const PROJECTION: &str = "embeddings.patch_embeddings.projection";
const PROJECTIONS: ProjectionNames =
    ProjectionNames { q: "attention.query", k: "attention.key", v: "attention.value", out: "output.dense" };
const VIT: LayerNames = LayerNames {
    attention: "attention",
    projections: PROJECTIONS,
    norms: ["layernorm_before", "layernorm_after"],
    feed_forward: ["intermediate.dense", "output.dense"],
    scales: None,
};
const DINOV2: LayerNames = LayerNames {
    attention: "attention",
    projections: PROJECTIONS,
    norms: ["norm1", "norm2"],
    feed_forward: ["mlp.fc1", "mlp.fc2"],
    scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
};

fn prefix(headers: &Headers) -> &'static str {
    let prefixes = ["vit.", "deit.", "dinov2."];
    prefixes.into_iter().find(|prefix| headers.has_prefix(prefix)).unwrap_or("")
}

pub(super) fn has_names(headers: &Headers) -> bool {
    let prefix = prefix(headers);
    let has = |name: &str| headers.has(&format!("{prefix}{name}"));
    has("embeddings.cls_token") && has("encoder.layer.0.attention.attention.query.weight")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix(headers);
    let mut to = GraphBuilder::new("ViT", headers);
    let mut x = embeddings(&mut to, config, prefix, extents)?;
    let eps = config.number("layer_norm_eps").unwrap_or(1e-12);
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let settings = LayerSettings {
        is_pre_norm: true,
        eps,
        head_width: head_width(width, heads)?,
        attention: Attention::full(heads),
        bias: None,
        function: activation(config, "hidden_act", ElementFunction::Gelu)?,
    };
    let layers = format!("{prefix}encoder.layer.");
    let is_dinov2 = headers.has(&format!("{layers}0.norm1.weight"));
    let names = if is_dinov2 { &DINOV2 } else { &VIT };
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = layer(&mut to, &format!("{layers}{index}"), names, &settings, x)?;
    }
    x = to.layer_norm(&format!("{prefix}layernorm"), x, eps)?;
    let mut outputs = vec![x];
    let function = activation(config, "pooler_act", ElementFunction::Tanh)?;
    outputs.extend(pooled(&mut to, &format!("{prefix}pooler.dense"), function, x)?);
    outputs.extend(heads_of_classes(&mut to, prefix, x, is_dinov2)?);
    Ok(to.finish(&outputs))
}

/// Patches, class tokens and learned positions.
fn embeddings(to: &mut GraphBuilder, config: &Config, prefix: &str, extents: Extents) -> Result<ValueId> {
    let at = |name: &str| format!("{prefix}{name}");
    let kernel = to.headers().get(&at(&format!("{PROJECTION}.weight"))).map(|info| info.shape.0.as_slice());
    let Some(&[width, channels, patch, _]) = kernel else {
        let message = "the checkpoint lacks these filters, expected [width, channels, height, width]";
        return Err(Error::input(message).at(at(PROJECTION)));
    };
    config.check("hidden_size", width, PROJECTION)?;
    let [height, width] = match config.size("image_size") {
        Ok(size) => size.map_or(extents.image, |side| [side; 2]),
        Err(_) => config.pair("image_size")?.unwrap_or(extents.image),
    };
    let images = to.input_from("pixel_values", &[extents.batch, channels, height, width], InputSource::Images);
    let settings = ConvSettings { stride: vec![patch; 2], ..ConvSettings::square(1, 0) };
    let x = to.conv(&at(PROJECTION), images, settings)?;
    let x = to.node(&at("embeddings.patches"), Composite::SpaceToTokens, &[x.into()]);
    let mut tokens: Vec<Operand> = vec![x.into()];
    for name in ["embeddings.cls_token", "embeddings.distillation_token"].map(at) {
        if to.headers().has(&name) {
            tokens.push(to.weight(&name)?.into());
        }
    }
    let x = to.node(&at("embeddings.tokens"), Composite::PrependTokens, &tokens);
    let positions = to.weight(&at("embeddings.position_embeddings"))?;
    let add = Primitive::Elementwise(ElementFunction::Add);
    Ok(to.node(&at("embeddings.sum"), add, &[x.into(), positions.into()]))
}

/// The classifier of the first token; of DeiT also the classifier of the second, and their mean; of DINOv2 with the mean of patches.
fn heads_of_classes(to: &mut GraphBuilder, prefix: &str, x: ValueId, is_dinov2: bool) -> Result<Option<ValueId>> {
    if to.headers().has("cls_classifier.weight") {
        let mut found = Vec::new();
        for (index, path) in ["cls_classifier", "distillation_classifier"].into_iter().enumerate() {
            let token = to.node(&format!("{path}.token"), Composite::TakeToken(index), &[x.into()]);
            found.push(to.linear(path, token)?);
        }
        let sum = to.add("classifier.sum", found[0], found[1]);
        return Ok(Some(to.node("classifier", Primitive::Scale(0.5), &[sum.into()])));
    }
    if !to.headers().has("classifier.weight") {
        return Ok(None);
    }
    let mut state = first_token(to, x);
    if is_dinov2 {
        let n =
            to.headers().get(&format!("{prefix}embeddings.position_embeddings")).and_then(|info| info.shape.0.get(1));
        let patches = Primitive::Slice { axis: 1, start: 1, len: n.map_or(0, |n| n.saturating_sub(1)) };
        let patches = to.node("patches", patches, &[x.into()]);
        let mean = Primitive::Reduce { axes: vec![1], kind: Reduction::Mean };
        let mean = to.node("patches.mean", mean, &[patches.into()]);
        let mean = to.node("patches.vector", Composite::TakeToken(0), &[mean.into()]);
        state = to.node("classifier.input", Primitive::Concat { axis: 1 }, &[state.into(), mean.into()]);
    }
    optional(to, "classifier", state)
}
