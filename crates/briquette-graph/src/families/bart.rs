//! BART and mBART: learned positions from 2 on, a norm of the embeddings, a decoder that attends to the encoder.

use super::extents::Extents;
use super::heads::tied_linear;
use super::labels::predicts_tokens;
use super::layers::{
    ProjectionNames, activation, attention, cross_attention, feed_forward, head_width, n_layers, n_tokens, post_norm,
    pre_norm, prefix_of,
};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction, Primitive};
use briquette_core::Result;

const EPS: f64 = 1e-5;
const TABLE: &str = "shared.weight";
const BIAS: &str = "final_logits_bias";
const NAMES: ProjectionNames = ProjectionNames { q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj" };

pub(super) fn has_names(headers: &Headers) -> bool {
    let has = |name: &str| ["model.", ""].iter().any(|prefix| headers.has(&format!("{prefix}{name}.weight")));
    has("encoder.layernorm_embedding") && has("decoder.layers.0.encoder_attn.q_proj")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &["model.", ""], TABLE);
    let at = |name: &str| format!("{prefix}{name}");
    let mut to = GraphBuilder::new("BART", headers);
    let table = to.weight(&at(TABLE))?;
    for stack in ["encoder", "decoder"].into_iter().filter(|stack| own_table(headers, config, prefix, stack).is_none())
    {
        to.alias(table, &at(&format!("{stack}.embed_tokens.weight")));
    }
    // Both embeddings come before the first block, so that no later block needs their table.
    let x = embeddings(&mut to, config, prefix, "encoder", extents)?;
    let y = embeddings(&mut to, config, prefix, "decoder", extents)?;
    // Both models have the same keys; mBART has a norm after each stack.
    let is_pre_norm = headers.has(&at("encoder.layer_norm.weight"));
    let encoded = BartStack::of(config, is_pre_norm, &at("encoder"), None)?.add(&mut to, config, x)?;
    let y = BartStack::of(config, is_pre_norm, &at("decoder"), Some(encoded))?.add(&mut to, config, y)?;
    if !predicts_tokens(&to, config, "ForConditionalGeneration") {
        return Ok(to.finish(&[y]));
    }
    let mut logits = tied_linear(&mut to, &at("shared"), "lm_head", &[], y)?;
    if headers.has(BIAS) {
        let bias = to.buffer(BIAS)?;
        logits = to.node("logits", Primitive::Elementwise(ElementFunction::Add), &[logits.into(), bias.into()]);
    }
    Ok(to.finish(&[logits]))
}

/// The table of words of one stack, where `config.json` unties the tables and the checkpoint has it.
fn own_table(headers: &Headers, config: &Config, prefix: &str, stack: &str) -> Option<String> {
    let path = format!("{prefix}{stack}.embed_tokens");
    let is_own = config.flag("tie_word_embeddings") == Some(false) && headers.has(&format!("{path}.weight"));
    is_own.then_some(path)
}

/// The sum of words and positions, normed.
fn embeddings(to: &mut GraphBuilder, config: &Config, prefix: &str, stack: &str, extents: Extents) -> Result<ValueId> {
    let path = format!("{prefix}{stack}.embed_positions");
    if let Some([vocabulary, width]) = to.headers().table(&format!("{prefix}{TABLE}")) {
        config.check("vocab_size", vocabulary, TABLE)?;
        config.check("d_model", width, TABLE)?;
    }
    let rows = to.headers().table(&format!("{path}.weight")).map(|[rows, _]| rows.saturating_sub(2));
    let shape = [extents.batch, n_tokens(extents.tokens, rows)];
    let (name, ids, positions) = match stack {
        "decoder" => ("decoder_", InputSource::TargetIds, InputSource::TargetPositionIds { offset: 2 }),
        _ => ("", InputSource::TokenIds, InputSource::PositionIds { offset: 2, skips_padding: false }),
    };
    let ids = to.input_from(&format!("{name}input_ids"), &shape, ids);
    let table = own_table(to.headers(), config, prefix, stack).unwrap_or_else(|| format!("{prefix}shared"));
    let mut x = to.embedding(&table, ids)?;
    if config.flag("scale_embedding") == Some(true) {
        let scale = Primitive::Scale((config.needed("d_model")? as f64).sqrt());
        x = to.node(&format!("{prefix}{stack}.scaled"), scale, &[x.into()]);
    }
    let positions = to.input_from(&format!("{name}position_ids"), &shape, positions);
    let positions = to.embedding(&path, positions)?;
    let sum = to.add(&format!("{prefix}{stack}.embeddings"), x, positions);
    to.layer_norm(&format!("{prefix}{stack}.layernorm_embedding"), sum, EPS)
}

/// An encoder, or a decoder that attends to it.
pub(super) struct BartStack {
    path: String,
    /// The beginning of its keys in `config.json`.
    key: &'static str,
    is_pre_norm: bool,
    head_width: usize,
    function: ElementFunction,
    /// The encoder's output, for a decoder.
    encoded: Option<ValueId>,
}

impl BartStack {
    pub(super) fn of(config: &Config, is_pre_norm: bool, path: &str, encoded: Option<ValueId>) -> Result<Self> {
        let key = if encoded.is_some() { "decoder" } else { "encoder" };
        let heads = config.needed(&format!("{key}_attention_heads"))?;
        let head_width = head_width(config.needed("d_model")?, heads)?;
        let function = activation(config, "activation_function", ElementFunction::Gelu)?;
        Ok(Self { path: path.into(), key, is_pre_norm, head_width, function, encoded })
    }

    /// Adds the layers, and the norm after them where norms come first.
    pub(super) fn add(&self, to: &mut GraphBuilder, config: &Config, mut x: ValueId) -> Result<ValueId> {
        let layers = format!("{}.layers.", self.path);
        for index in 0..n_layers(to, config, &format!("{}_layers", self.key), &layers)? {
            x = self.layer(to, &format!("{layers}{index}"), x)?;
        }
        if self.is_pre_norm { to.layer_norm(&format!("{}.layer_norm", self.path), x, EPS) } else { Ok(x) }
    }

    fn layer(&self, to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
        let at = |name: &str| format!("{path}.{name}");
        to.begin_block(path);
        let settings = Attention { causal: self.encoded.is_some(), ..Attention::full(1) };
        let own = at("self_attn");
        let mut x = self.part(to, &own, &at("self_attn_layer_norm"), x, |to, x| {
            attention(to, &own, &NAMES, self.head_width, settings, None, x)
        })?;
        if let Some(encoded) = self.encoded {
            let cross = at("encoder_attn");
            x = self.part(to, &cross, &at("encoder_attn_layer_norm"), x, |to, x| {
                cross_attention(to, &cross, &NAMES, self.head_width, Attention::full(1), [x, encoded])
            })?;
        }
        let x = self.part(to, path, &at("final_layer_norm"), x, |to, x| {
            feed_forward(to, [&at("fc1"), &at("fc2")], self.function, x)
        })?;
        to.end_block();
        Ok(x)
    }

    /// Adds a part with its norm and residual sum.
    fn part<'a>(
        &self,
        to: &mut GraphBuilder<'a>,
        path: &str,
        norm: &str,
        x: ValueId,
        inner: impl FnOnce(&mut GraphBuilder<'a>, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let norm = |to: &mut GraphBuilder<'a>, x| to.layer_norm(norm, x, EPS);
        match self.is_pre_norm {
            true => pre_norm(to, path, norm, inner, x),
            false => post_norm(to, path, norm, inner, x),
        }
    }
}
