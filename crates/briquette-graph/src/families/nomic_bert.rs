//! NomicBERT: BERT's embeddings without positions, rotary attention, gated feed-forward layers, norms after residual sums.

use super::extents::Extents;
use super::heads::{VocabularyHead, has, pooled};
use super::labels::classes;
use super::layers::{
    Projected, activation, attend, fused_kv_heads, fused_split, gated, head_width, n_layers, n_tokens, post_norm,
    prefix_of,
};
use super::rotary::rotary;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction, Rotary, RotaryScaling};
use briquette_core::{Error, Result};

const FIRST: &str = "encoder.layers.0.attn.Wqkv.weight";
const PREFIXES: [&str; 2] = ["nomic_bert.", ""];

/// Settings of the original implementation that this graph does not have.
const ABSENT: [&str; 5] = ["prenorm", "use_rms_norm", "rotary_emb_interleaved", "causal", "parallel_block"];

pub(super) fn has_names(headers: &Headers) -> bool {
    PREFIXES.iter().any(|prefix| ["emb_ln.weight", FIRST].iter().all(|name| headers.has(&format!("{prefix}{name}"))))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    check(config)?;
    let prefix = prefix_of(headers, &PREFIXES, FIRST);
    let at = |name: &str| format!("{prefix}{name}");
    let mut to = GraphBuilder::new("NomicBERT", headers);
    let eps = config.number("layer_norm_eps").or(config.number("layer_norm_epsilon")).unwrap_or(1e-12);
    let table = at("embeddings.word_embeddings");
    let width = size(config, ["hidden_size", "n_embd"])?;
    if let Some([vocabulary, found]) = headers.table(&format!("{table}.weight")) {
        config.check("vocab_size", vocabulary, "word_embeddings.weight")?;
        for key in ["hidden_size", "n_embd"] {
            config.check(key, found, "word_embeddings.weight")?;
        }
    }
    let x = embeddings(&mut to, config, prefix, extents)?;
    let mut x = to.layer_norm(&at("emb_ln"), x, eps)?;
    let heads = size(config, ["num_attention_heads", "n_head"])?;
    let key = if config.size("num_hidden_layers")?.is_some() { "num_hidden_layers" } else { "n_layer" };
    let head_width = head_width(width, heads)?;
    let layers = at("encoder.layers.");
    let settings = NomicLayers { heads, head_width, rotary: positions(config, head_width)?, eps };
    for index in 0..n_layers(&to, config, key, &layers)? {
        x = settings.add(&mut to, config, &format!("{layers}{index}"), x)?;
    }
    let mut outputs = vec![x];
    outputs.extend(heads_of_tasks(&mut to, config, prefix, eps, x)?);
    Ok(to.finish(&outputs))
}

/// The pooler, the classes, and the head over the vocabulary, each if the checkpoint has it.
fn heads_of_tasks(to: &mut GraphBuilder, config: &Config, prefix: &str, eps: f64, x: ValueId) -> Result<Vec<ValueId>> {
    let state = pooled(to, &format!("{prefix}pooler.dense"), ElementFunction::Tanh, x)?;
    let mut outputs = Vec::from_iter(state);
    outputs.extend(classes(to, config, "classifier", state.unwrap_or(x), x)?);
    let transform = "cls.predictions.transform";
    let norm = ["layer_norm", "LayerNorm"].map(|name| format!("{transform}.{name}"));
    let head = VocabularyHead {
        dense: "cls.predictions.transform.dense",
        norm: if has(to, &norm[0]) { &norm[0] } else { &norm[1] },
        decoder: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
        table: &format!("{prefix}embeddings.word_embeddings"),
        function: activation(config, "hidden_act", ElementFunction::Silu)?,
        eps,
    };
    outputs.extend(head.add(to, x)?);
    Ok(outputs)
}

/// Refuses settings of the original implementation that change the network.
fn check(config: &Config) -> Result<()> {
    let error = |message: String| Err(Error::input(message).at("config.json"));
    if let Some(key) = ABSENT.into_iter().find(|key| config.flag(key) == Some(true)) {
        return error(format!("{key} is true, which is not known for NomicBERT"));
    }
    match config.text("activation_function") {
        None | Some("swiglu") => Ok(()),
        Some(other) => error(format!("activation_function is {other:?}, expected \"swiglu\" for NomicBERT")),
    }
}

/// A size under the key of transformers, or under the key of the original implementation.
fn size(config: &Config, [key, original]: [&str; 2]) -> Result<usize> {
    match config.size(original)? {
        Some(size) if config.size(key)?.is_none() => Ok(size),
        _ => config.needed(key),
    }
}

/// Words and segments.
fn embeddings(to: &mut GraphBuilder, config: &Config, prefix: &str, extents: Extents) -> Result<ValueId> {
    let longest = config.size("max_position_embeddings")?.or(config.size("n_positions")?);
    let shape = [extents.batch, n_tokens(extents.tokens, longest)];
    let ids = to.input_from("input_ids", &shape, InputSource::TokenIds);
    let words = to.embedding(&format!("{prefix}embeddings.word_embeddings"), ids)?;
    let types = format!("{prefix}embeddings.token_type_embeddings");
    if !has(to, &types) {
        return Ok(words);
    }
    let ids = to.input_from("token_type_ids", &shape, InputSource::TokenTypeIds);
    let segments = to.embedding(&types, ids)?;
    Ok(to.add(&format!("{prefix}embeddings.sum"), words, segments))
}

/// Rotary positions. The original implementation has keys of its own, and enlarges the base for long texts.
fn positions(config: &Config, head_width: usize) -> Result<Rotary> {
    let mut rotary = rotary(config, None, head_width)?;
    if config.object("rope_parameters").is_none() && config.number("rotary_emb_base").is_none() {
        rotary.theta = 1000.0;
    }
    let share = config.number("rotary_emb_fraction").unwrap_or(1.0);
    if share != 1.0 {
        let message = format!("rotary_emb_fraction is {share}, expected 1 for NomicBERT");
        return Err(Error::input(message).at("config.json"));
    }
    if let Some(factor) = config.number("rotary_scaling_factor") {
        let original = config.number("max_trained_positions").unwrap_or(2048.0);
        if !(factor >= 1.0 && (factor as f32).is_normal() && original >= 1.0 && (original as f32).is_normal()) {
            let message = format!(
                "rotary_scaling_factor is {factor} and max_trained_positions is {original}, expected 1 or more"
            );
            return Err(Error::input(message).at("config.json"));
        }
        rotary.scaling = RotaryScaling::Dynamic { factor, original };
    }
    Ok(rotary)
}

/// The settings of layers.
struct NomicLayers {
    heads: usize,
    head_width: usize,
    rotary: Rotary,
    eps: f64,
}

impl NomicLayers {
    fn add(&self, to: &mut GraphBuilder, config: &Config, path: &str, x: ValueId) -> Result<ValueId> {
        let at = |name: &str| format!("{path}.{name}");
        let function = activation(config, "hidden_act", ElementFunction::Silu)?;
        to.begin_block(path);
        let n_out = to.headers().matrix(&at("attn.Wqkv.weight")).map_or(0, |[n_out, _]| n_out);
        let heads = fused_kv_heads(n_out, self.head_width, 1, self.heads);
        let attention = |to: &mut GraphBuilder, x| {
            let fused = to.linear(&at("attn.Wqkv"), x)?;
            let width = heads.saturating_mul(self.head_width);
            let parts = fused_split(to, &at("attn.Wqkv"), &[width; 3], fused);
            let projected = Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads: heads };
            let settings = Attention { rotary: Some(self.rotary.clone()), ..Attention::full(1) };
            let mixed = attend(to, &at("attn"), &projected, settings, None);
            to.linear(&at("attn.out_proj"), mixed)
        };
        let norm = |name: &str| {
            let path = at(name);
            move |to: &mut GraphBuilder, x| to.layer_norm(&path, x, self.eps)
        };
        let x = post_norm(to, &at("attn"), norm("norm1"), attention, x)?;
        let feed_forward = |to: &mut GraphBuilder, x| gated(to, &at("mlp"), ["fc12", "fc11", "fc2"], function, x);
        let x = post_norm(to, path, norm("norm2"), feed_forward, x)?;
        to.end_block();
        Ok(x)
    }
}
