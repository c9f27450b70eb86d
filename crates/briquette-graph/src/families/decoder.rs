//! Decoders with Llama's names: rotary attention, gated feed-forward layers, RMS norms.
//!
//! What differs between families follows from the tensors (fused layers, norms of heads, norms after layers) and from keys of
//! `config.json` (windows, factors, limits of scores). [`Style`] has what neither shows.

use super::experts::experts;
use super::extents::Extents;
use super::labels::{finish_with_classes, has_classes, predicts_tokens};
use super::layers::{
    Projected, ProjectionNames, activation, attend, check_causal, fused_kv_heads, fused_split, gated, head_width,
    n_layers, n_tokens,
};
use super::layers::{prefix_of, project};
use super::rotary::rotary;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ElementFunction, Primitive};
use briquette_core::{Error, Result};

const HEAD: &str = "lm_head.weight";
/// The last two before "" are of models that read images too.
const PREFIXES: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];

/// What neither tensors nor keys of `config.json` show.
pub(super) struct Style {
    pub(super) family: &'static str,
    /// Added to the weights of norms.
    pub(super) norm_offset: f64,
    /// Whether embeddings are multiplied by the root of their width.
    pub(super) has_scaled_embeddings: bool,
    /// Whether the head is the table of embeddings where `config.json` does not say so.
    pub(super) is_tied: bool,
    /// The function of gates where `config.json` has none.
    pub(super) function: ElementFunction,
    /// The kind of a layer where `config.json` lists none: whether its window is limited.
    pub(super) is_sliding: fn(&Config, usize) -> bool,
}

/// Returns whether a network has classes or hidden states instead of a head: a classifier, or an embedding model.
///
/// Embedding models are saved without the prefix `model.`.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    let has_layers = |prefix: &str| headers.has_prefix(&format!("{prefix}layers.0.self_attn."));
    PREFIXES.into_iter().any(has_layers) && (has_classes(headers) || is_base(headers))
}

fn is_base(headers: &Headers) -> bool {
    headers.has("embed_tokens.weight") && !headers.has(HEAD)
}

/// The values of keys that a `model_type` has where `config.json` leaves them out.
fn usual(model_type: Option<&str>) -> &'static str {
    match model_type.unwrap_or_default() {
        "granite" => r#"{"attention_multiplier": 1.0}"#,
        "gemma2" => {
            r#"{"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}"#
        }
        "olmo2" => r#"{"rms_norm_eps": 1e-5}"#,
        "smollm3" => r#"{"rope_theta": 2000000.0}"#,
        _ => "{}",
    }
}

/// Builds the graph of a decoder, or of an encoder with causal attention.
pub(super) fn build(headers: &Headers, config: &Config, extents: Extents, style: &Style) -> Result<Graph> {
    check_causal(config)?;
    let config = &config.clone().with_usual(&Config::parse(Some(usual(config.model_type()).as_bytes()))?);
    let mut to = GraphBuilder::new(style.family, headers);
    let prefix = prefix_of(headers, &PREFIXES, "embed_tokens.weight");
    let table = format!("{prefix}embed_tokens");
    let rows = headers.get(&format!("{table}.weight")).map(|info| info.shape.0.as_slice());
    if let Some(&[vocabulary, width]) = rows {
        config.check("vocab_size", vocabulary, &table)?;
        config.check("hidden_size", width, &table)?;
    }
    let tokens = n_tokens(extents.tokens, config.size("max_position_embeddings")?);
    let ids = to.input_from("input_ids", &[extents.batch, tokens], InputSource::TokenIds);
    let mut x = to.embedding(&table, ids)?;
    let mut factor = config.number("embedding_multiplier").unwrap_or(1.0);
    if style.has_scaled_embeddings {
        factor *= rows.and_then(|shape| shape.get(1)).map_or(1.0, |&width| (width as f64).sqrt());
    }
    x = scaled(&mut to, &table, factor, x);
    let layers = format!("{prefix}layers.");
    let decoder = RotaryDecoder { config, style, eps: config.number("rms_norm_eps").unwrap_or(1e-6) };
    for index in 0..n_layers(&to, config, "num_hidden_layers", &layers)? {
        x = decoder.layer(&mut to, &format!("{layers}{index}"), index, x)?;
    }
    x = decoder.norm(&mut to, &format!("{prefix}norm"), x)?;
    if predicts_tokens(&to, config, "ForCausalLM") && !is_base(headers) {
        x = decoder.head(&mut to, &table, x)?;
        return Ok(to.finish(&[x]));
    }
    finish_with_classes(to, config, x)
}

struct RotaryDecoder<'a> {
    config: &'a Config,
    style: &'a Style,
    eps: f64,
}

impl RotaryDecoder<'_> {
    fn norm(&self, to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
        to.layer(path, Composite::RmsNorm { eps: self.eps, offset: self.style.norm_offset }, x)
    }

    fn layer(&self, to: &mut GraphBuilder, path: &str, index: usize, x: ValueId) -> Result<ValueId> {
        let config = self.config;
        let function = self.function()?;
        let (own, inner) = (format!("{path}.self_attn"), format!("{path}.mlp"));
        to.begin_block(path);
        let [first, second, third, last] = norms(to, path);
        let x = self.residual(to, &own, [first, second], |to, x| self.attention(to, &own, index, x), x)?;
        let feed_forward = |to: &mut GraphBuilder, x| match to.headers().has(&format!("{inner}.gate_up_proj.weight")) {
            true => fused_gated(to, &inner, function, x),
            false => match experts(to, config, path, function, x)? {
                Some(sum) => Ok(sum),
                None => gated(to, &inner, ["gate_proj", "up_proj", "down_proj"], function, x),
            },
        };
        let x = self.residual(to, &inner, [third, last], feed_forward, x)?;
        to.end_block();
        Ok(x)
    }

    /// The function of gates. Gemma 1 calls the approximation by a tangent "gelu".
    fn function(&self) -> Result<ElementFunction> {
        let config = self.config;
        let is_first_gemma = config.model_type() == Some("gemma");
        let has_own = config.text("hidden_activation").is_some() && !is_first_gemma;
        let key = if has_own { "hidden_activation" } else { "hidden_act" };
        match activation(config, key, self.style.function)? {
            ElementFunction::Gelu if is_first_gemma => Ok(ElementFunction::GeluTanh),
            function => Ok(function),
        }
    }

    /// `x + factor · after(inner(before(x)))`, where each norm may be absent.
    fn residual<'b>(
        &self,
        to: &mut GraphBuilder<'b>,
        path: &str,
        [before, after]: [Option<String>; 2],
        inner: impl FnOnce(&mut GraphBuilder<'b>, ValueId) -> Result<ValueId>,
        x: ValueId,
    ) -> Result<ValueId> {
        let normed = before.map_or(Ok(x), |norm| self.norm(to, &norm, x))?;
        let changed = inner(to, normed)?;
        let changed = after.map_or(Ok(changed), |norm| self.norm(to, &norm, changed))?;
        let changed = scaled(to, path, self.config.number("residual_multiplier").unwrap_or(1.0), changed);
        Ok(to.add(&format!("{path}.residual"), x, changed))
    }

    fn attention(&self, to: &mut GraphBuilder, path: &str, index: usize, x: ValueId) -> Result<ValueId> {
        let config = self.config;
        let n_heads = config.needed("num_attention_heads")?;
        let width = match config.size("head_dim")? {
            Some(width) => width,
            None => head_width(config.needed("hidden_size")?, n_heads)?,
        };
        let names = ProjectionNames { q: "q_proj", k: "k_proj", v: "v_proj", out: "o_proj" };
        let mut projected = match to.headers().has(&format!("{path}.qkv_proj.weight")) {
            true => {
                let kv_heads = config.size("num_key_value_heads")?.unwrap_or(n_heads);
                fused_project(to, path, [n_heads, kv_heads], width, x)?
            }
            false => project(to, path, &names, width, [x; 2])?,
        };
        projected.q = self.head_norm(to, &format!("{path}.q_norm"), projected.heads, width, projected.q)?;
        projected.k = self.head_norm(to, &format!("{path}.k_norm"), projected.kv_heads, width, projected.k)?;
        let settings = self.settings(index, width)?;
        let mixed = attend(to, path, &projected, settings, None);
        to.linear(&format!("{path}.o_proj"), mixed)
    }

    /// A norm of queries or keys, if the checkpoint has it: of each head, or of all heads together.
    fn head_norm(&self, to: &mut GraphBuilder, path: &str, heads: usize, width: usize, x: ValueId) -> Result<ValueId> {
        let Some(info) = to.headers().get(&format!("{path}.weight")) else { return Ok(x) };
        match info.shape.0 == [width] {
            true => to.layer(path, Composite::HeadNorm { heads, eps: self.eps, offset: self.style.norm_offset }, x),
            false => self.norm(to, path, x),
        }
    }

    fn settings(&self, index: usize, width: usize) -> Result<Attention> {
        let config = self.config;
        // Llama's own code reads neither windows nor kinds of layers.
        let is_llama = config.model_type() == Some("llama");
        let kind = config.text_at("layer_types", index).filter(|_| !is_llama);
        let is_sliding = kind
            .map_or_else(|| !is_llama && (self.style.is_sliding)(config, index), |kind| kind == "sliding_attention");
        let window = config.size("sliding_window")?.filter(|_| is_sliding);
        let kind = if is_sliding { "sliding_attention" } else { "full_attention" };
        let has_rotary = is_llama || self.has_rotary(index);
        let rotary = if has_rotary { Some(rotary(config, Some(kind), width)?) } else { None };
        let given = config.number("query_pre_attn_scalar").map(|scalar| 1.0 / scalar.sqrt());
        let scale = given.or(config.number("attention_multiplier"));
        let soft_cap = config.number("attn_logit_softcapping").filter(|_| config.model_type() != Some("gemma3_text"));
        Ok(Attention { causal: true, window, rotary, scale, soft_cap, ..Attention::full(1) })
    }

    /// Whether positions turn the heads of a layer: in SmolLM3, not in every fourth.
    fn has_rotary(&self, index: usize) -> bool {
        let config = self.config;
        match config.number_at("no_rope_layers", index) {
            Some(number) => number != 0.0,
            None if config.model_type() == Some("smollm3") => {
                let every = config.number("no_rope_layer_interval").map_or(4, |n| n.clamp(1.0, 1e6) as usize);
                !(index + 1).is_multiple_of(every)
            }
            None => true,
        }
    }

    /// The head over the vocabulary: its own matrix, or the embedding where `config.json` ties them and the checkpoint has no other.
    fn head(&self, to: &mut GraphBuilder, table: &str, x: ValueId) -> Result<ValueId> {
        if self.config.flag("tie_word_embeddings").unwrap_or(self.style.is_tied) && !to.headers().has(HEAD) {
            let table = to.weight(&format!("{table}.weight"))?;
            to.alias(table, HEAD);
        }
        check_head(to)?;
        let weight = to.weight(HEAD)?;
        let logits = to.node("lm_head", Composite::Linear, &[x.into(), weight.into()]);
        let logits = scaled(to, "lm_head", 1.0 / self.config.number("logits_scaling").unwrap_or(1.0), logits);
        let Some(cap) = self.config.number("final_logit_softcapping") else { return Ok(logits) };
        let logits = to.node("lm_head.scaled", Primitive::Scale(1.0 / cap), &[logits.into()]);
        let logits = to.function("lm_head.tanh", ElementFunction::Tanh, logits);
        Ok(to.node("lm_head.capped", Primitive::Scale(cap), &[logits.into()]))
    }
}

/// Refuses a checkpoint without a head, and says what it looks like.
fn check_head(to: &GraphBuilder) -> Result<()> {
    let has = |name: &str| to.headers().has(name);
    let message = if has(HEAD) || to.has_weight(HEAD) {
        return Ok(());
    } else if has("score.weight") {
        "it has score.weight and no lm_head.weight, like a LlamaForSequenceClassification"
    } else {
        "it has no lm_head.weight, and config.json does not tie the head to the embedding (tie_word_embeddings)"
    };
    Err(Error::input(format!("{message}; expected a language model; save it as LlamaForCausalLM")))
}

/// The norms before and after attention, and before and after the feed-forward block.
fn norms(to: &GraphBuilder, path: &str) -> [Option<String>; 4] {
    let at = |name: &str| Some(format!("{path}.{name}"));
    let has = |name: &str| to.headers().has(&format!("{path}.{name}.weight"));
    let [first, second] = ["input_layernorm", "post_attention_layernorm"].map(at);
    let [third, last] = ["pre_feedforward_layernorm", "post_feedforward_layernorm"].map(at);
    match (has("pre_feedforward_layernorm"), has("post_feedforward_layernorm")) {
        (true, _) => [first, second, third, last],
        (false, true) => [None, second, None, last],
        (false, false) => [first, None, second, None],
    }
}

fn scaled(to: &mut GraphBuilder, path: &str, factor: f64, x: ValueId) -> ValueId {
    if factor == 1.0 { x } else { to.node(&format!("{path}.scaled"), Primitive::Scale(factor), &[x.into()]) }
}

/// One layer for queries, keys and values, in this order.
fn fused_project(
    to: &mut GraphBuilder,
    path: &str,
    [heads, kv_heads]: [usize; 2],
    width: usize,
    x: ValueId,
) -> Result<Projected> {
    let path = format!("{path}.qkv_proj");
    let n_out = to.headers().matrix(&format!("{path}.weight")).map_or(0, |[n_out, _]| n_out);
    let n = if kv_heads > 0 && heads.is_multiple_of(kv_heads) { heads / kv_heads } else { 0 };
    let left = fused_kv_heads(n_out, width, n, kv_heads);
    let (heads, kv_heads) = if left == kv_heads { (heads, kv_heads) } else { (n.saturating_mul(left), left) };
    let fused = to.linear(&path, x)?;
    let sizes = [heads, kv_heads, kv_heads].map(|n| n.saturating_mul(width));
    let parts = fused_split(to, &path, &sizes, fused);
    Ok(Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads })
}

/// A gated feed-forward block with one layer for gate and up.
fn fused_gated(to: &mut GraphBuilder, path: &str, function: ElementFunction, x: ValueId) -> Result<ValueId> {
    let fused = format!("{path}.gate_up_proj");
    let rows = to.headers().matrix(&format!("{fused}.weight")).map_or(0, |[rows, _]| rows);
    if !rows.is_multiple_of(2) {
        return Err(Error::input(format!("found {rows} outputs, expected an even number")).at(fused));
    }
    let x = to.linear(&fused, x)?;
    let parts = fused_split(to, &fused, &[rows / 2; 2], x);
    let inner = to.node(&format!("{path}.gate"), Composite::Gate(function), &[parts[0].into(), parts[1].into()]);
    to.linear(&format!("{path}.down_proj"), inner)
}
