//! CLIP and SigLIP, with Hugging Face's names: the network of images, of texts, or both.

use super::clip_pooling::pooling_head;
use super::encoder::{LayerNames, LayerSettings, layer};
use super::extents::Extents;
use super::heads::{first_token, has, optional};
use super::labels::check_labels;
use super::layers::{ProjectionNames, activation, head_width, n_layers, n_tokens};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ConvSettings, ElementFunction, Primitive, Reduction};
use briquette_core::{Error, Result};

/// Networks of images, or of images and texts.
pub(super) const MODEL_TYPES: &[&str] = &["clip", "clip_vision_model", "siglip", "siglip_vision_model"];
/// Networks of texts.
pub(super) const TEXT_MODEL_TYPES: &[&str] = &["clip_text_model", "siglip_text_model"];

const PATCHES: &str = "embeddings.patch_embedding";
const WORDS: &str = "embeddings.token_embedding";
const NAMES: LayerNames = LayerNames {
    attention: "self_attn",
    projections: ProjectionNames { q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj" },
    norms: ["layer_norm1", "layer_norm2"],
    feed_forward: ["mlp.fc1", "mlp.fc2"],
    scales: None,
};

pub(super) fn has_images(headers: &Headers) -> bool {
    headers.has(&format!("vision_model.{PATCHES}.weight"))
}

pub(super) fn has_texts(headers: &Headers) -> bool {
    headers.has(&format!("text_model.{WORDS}.weight")) && !has_images(headers)
}

/// Builds the network of images, after the network of texts if the checkpoint has it.
pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("CLIP", headers);
    let mut outputs = Vec::new();
    if headers.has_prefix("text_model.") {
        outputs.extend(Tower::of(config, "text")?.texts(&mut to, "text_model.", extents)?);
    }
    let prefix = if headers.has_prefix("vision_model.") { "vision_model." } else { "" };
    outputs.extend(Tower::of(config, "vision")?.images(&mut to, config, prefix, extents)?);
    Ok(to.finish(&outputs))
}

/// Builds the network of texts.
pub(super) fn build_text(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("CLIP text", headers);
    let prefix = if headers.has_prefix("text_model.") { "text_model." } else { "" };
    let outputs = Tower::of(config, "text")?.texts(&mut to, prefix, extents)?;
    Ok(to.finish(&outputs))
}

/// The network of images or of texts, and its settings.
struct Tower {
    config: Config,
    is_siglip: bool,
    /// Heads where `config.json` has no number.
    usual_heads: usize,
    eps: f64,
    function: ElementFunction,
}

impl Tower {
    /// Reads the settings of `kind`, which are in an object of their own where a model has both networks.
    fn of(config: &Config, kind: &str) -> Result<Self> {
        let is_siglip = config.model_type().is_some_and(|name| name.starts_with("siglip"));
        let own = config.object(&format!("{kind}_config")).unwrap_or_else(|| config.clone());
        let (function, eps) =
            if is_siglip { (ElementFunction::GeluTanh, 1e-6) } else { (ElementFunction::QuickGelu, 1e-5) };
        Ok(Self {
            is_siglip,
            usual_heads: if kind == "text" && !is_siglip { 8 } else { 12 },
            eps: own.number("layer_norm_eps").unwrap_or(eps),
            function: activation(&own, "hidden_act", function)?,
            config: own,
        })
    }

    /// Words, positions, layers and a norm. Returns hidden states, and their projection to the space of images.
    ///
    /// The projection of every token is an output. A text has that of its end token (CLIP) or last token (SigLIP).
    fn texts(&self, to: &mut GraphBuilder, prefix: &str, extents: Extents) -> Result<Vec<ValueId>> {
        let at = |name: &str| format!("{prefix}{name}");
        let [words, positions] = [WORDS, "embeddings.position_embedding"].map(at);
        let [rows, width] = to.headers().table(&format!("{words}.weight")).unwrap_or([0; 2]);
        if rows > 0 {
            self.config.check("vocab_size", rows, &words)?;
        }
        let longest = to.headers().table(&format!("{positions}.weight")).map(|[rows, _]| rows);
        let shape = [extents.batch, n_tokens(extents.tokens, longest)];
        let ids = to.input_from("input_ids", &shape, InputSource::TokenIds);
        let source = InputSource::PositionIds { offset: 0, skips_padding: false };
        let places = to.input_from("position_ids", &shape, source);
        let (x, places) = (to.embedding(&words, ids)?, to.embedding(&positions, places)?);
        let x = to.add(&at("embeddings.sum"), x, places);
        let x = self.layers(to, prefix, width, !self.is_siglip, x)?;
        let x = to.layer_norm(&at("final_layer_norm"), x, self.eps)?;
        let head = if self.is_siglip { at("head") } else { "text_projection".into() };
        Ok([x].into_iter().chain(optional(to, &head, x)?).collect())
    }

    /// Patches, layers and the heads that the checkpoint has.
    fn images(&self, to: &mut GraphBuilder, config: &Config, prefix: &str, extents: Extents) -> Result<Vec<ValueId>> {
        let at = |name: &str| format!("{prefix}{name}");
        let (mut x, width) = self.patches(to, prefix, extents)?;
        if !self.is_siglip {
            x = to.layer_norm(&at("pre_layrnorm"), x, self.eps)?;
        }
        x = self.layers(to, prefix, width, false, x)?;
        if self.is_siglip {
            x = to.layer_norm(&at("post_layernorm"), x, self.eps)?;
        }
        let mut outputs = vec![x];
        let pooled = if self.is_siglip { self.attended(to, prefix, width, x)? } else { self.first(to, prefix, x)? };
        outputs.extend(pooled);
        if has(to, "classifier") {
            check_labels(to, config, "classifier")?;
            let mean = self.mean_of_patches(to, prefix, x);
            outputs.push(to.linear("classifier", mean)?);
        } else if let Some(pooled) = pooled {
            outputs.extend(optional(to, "visual_projection", pooled)?);
        }
        Ok(outputs)
    }

    /// The norm of the token for the class: CLIP's vector of an image.
    fn first(&self, to: &mut GraphBuilder, prefix: &str, x: ValueId) -> Result<Option<ValueId>> {
        let first = first_token(to, x);
        to.layer_norm(&format!("{prefix}post_layernorm"), first, self.eps).map(Some)
    }

    /// SigLIP's vector of an image, if the checkpoint has its head.
    fn attended(&self, to: &mut GraphBuilder, prefix: &str, width: usize, x: ValueId) -> Result<Option<ValueId>> {
        let path = format!("{prefix}head");
        if !to.headers().has(&format!("{path}.probe")) {
            return Ok(None);
        }
        let heads = self.heads()?;
        pooling_head(to, &path, [heads, head_width(width, heads)?], self.function, self.eps, x).map(Some)
    }

    fn heads(&self) -> Result<usize> {
        Ok(self.config.size("num_attention_heads")?.unwrap_or(self.usual_heads))
    }

    fn layers(
        &self,
        to: &mut GraphBuilder,
        prefix: &str,
        width: usize,
        causal: bool,
        mut x: ValueId,
    ) -> Result<ValueId> {
        let heads = self.heads()?;
        let settings = LayerSettings {
            is_pre_norm: true,
            eps: self.eps,
            head_width: head_width(width, heads)?,
            attention: Attention { causal, ..Attention::full(heads) },
            bias: None,
            function: self.function,
        };
        let layers = format!("{prefix}encoder.layers.");
        for index in 0..n_layers(to, &self.config, "num_hidden_layers", &layers)? {
            x = layer(to, &format!("{layers}{index}"), &NAMES, &settings, x)?;
        }
        Ok(x)
    }

    /// Patches of images, a token for the class if the checkpoint has one, and positions. Returns the width too.
    fn patches(&self, to: &mut GraphBuilder, prefix: &str, extents: Extents) -> Result<(ValueId, usize)> {
        let at = |name: &str| format!("{prefix}{name}");
        let kernel = to.headers().get(&at(&format!("{PATCHES}.weight"))).map(|info| info.shape.0.as_slice());
        let Some(&[width, channels, patch, _]) = kernel else {
            let message = "the checkpoint lacks these filters, expected [width, channels, height, width]";
            return Err(Error::input(message).at(at(PATCHES)));
        };
        self.config.check("hidden_size", width, PATCHES)?;
        let [height, wide] = match self.config.size("image_size") {
            Ok(size) => size.map_or(extents.image, |side| [side; 2]),
            Err(_) => self.config.pair("image_size")?.unwrap_or(extents.image),
        };
        let shape = [extents.batch, channels, height, wide];
        let images = to.input_from("pixel_values", &shape, InputSource::Images);
        let settings = ConvSettings { stride: vec![patch; 2], ..ConvSettings::square(1, 0) };
        let x = to.conv(&at(PATCHES), images, settings)?;
        let mut x = to.node(&at("embeddings.patches"), Composite::SpaceToTokens, &[x.into()]);
        let class = at("embeddings.class_embedding");
        if to.headers().has(&class) {
            let token = to.weight(&class)?;
            let token = to.node(&at("embeddings.class"), Primitive::Reshape(vec![1, 1, width]), &[token.into()]);
            x = to.node(&at("embeddings.tokens"), Composite::PrependTokens, &[x.into(), token.into()]);
        }
        let positions = to.weight(&at("embeddings.position_embedding.weight"))?;
        let add = Primitive::Elementwise(ElementFunction::Add);
        Ok((to.node(&at("embeddings.sum"), add, &[x.into(), positions.into()]), width))
    }

    /// The mean of patches, without the token for the class.
    fn mean_of_patches(&self, to: &mut GraphBuilder, prefix: &str, x: ValueId) -> ValueId {
        let positions = format!("{prefix}embeddings.position_embedding.weight");
        let n = to.headers().table(&positions).map_or(0, |[rows, _]| rows);
        let x = match to.headers().has(&format!("{prefix}embeddings.class_embedding")) {
            true => to.node("patches", Primitive::Slice { axis: 1, start: 1, len: n.saturating_sub(1) }, &[x.into()]),
            false => x,
        };
        let mean = Primitive::Reduce { axes: vec![1], kind: Reduction::Mean };
        let mean = to.node("patches.mean", mean, &[x.into()]);
        to.node("patches.vector", Composite::TakeToken(0), &[mean.into()])
    }
}
