//! T5 and mT5: RMS norms before each part, a table of relative position biases for each stack, scores without a scale.

use super::extents::Extents;
use super::heads::tied_linear;
use super::labels::{classes, predicts_tokens};
use super::layers::{
    ProjectionNames, activation, attention, cross_attention, feed_forward, gated, n_layers, n_tokens, pre_norm,
    prefix_of,
};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, ElementFunction, Primitive};
use briquette_core::{Error, Result};

const FIRST: &str = "encoder.block.0.layer.0.SelfAttention.q.weight";
const PREFIXES: [&str; 2] = ["", "transformer."];
const NAMES: ProjectionNames = ProjectionNames { q: "q", k: "k", v: "v", out: "o" };

/// Names of the encoder alone.
pub(super) fn has_encoder_names(headers: &Headers) -> bool {
    PREFIXES.iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}"))) && !has_decoder(headers)
}

/// Names of an encoder and a decoder.
pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has(FIRST) && has_decoder(headers)
}

fn has_decoder(headers: &Headers) -> bool {
    headers.has_prefix("decoder.block.")
}

pub(super) fn build_encoder(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &PREFIXES, FIRST);
    let mut to = GraphBuilder::new("T5", headers);
    let table = table(&mut to, config, prefix)?;
    let x = words(&mut to, &table, "input_ids", InputSource::TokenIds, extents)?;
    let stack = T5Stack::of(&mut to, config, &format!("{prefix}encoder"), None)?;
    let x = stack.add(&mut to, config, "num_layers", x)?;
    let classes = classes(&mut to, config, "classifier", x, x)?;
    Ok(to.finish(&Vec::from_iter([x].into_iter().chain(classes))))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("T5", headers);
    let table = table(&mut to, config, "")?;
    // Both embeddings come before the first block, so that no later block needs their table.
    let x = words(&mut to, &table, "input_ids", InputSource::TokenIds, extents)?;
    let encoder = T5Stack::of(&mut to, config, "encoder", None)?;
    let y = words(&mut to, &table, "decoder_input_ids", InputSource::TargetIds, extents)?;
    let decoder = T5Stack::of(&mut to, config, "decoder", Some(x))?;
    let encoded = encoder.add(&mut to, config, "num_layers", x)?;
    let decoder = T5Stack { encoded: Some(encoded), ..decoder };
    let key = if config.size("num_decoder_layers")?.is_some() { "num_decoder_layers" } else { "num_layers" };
    let mut y = decoder.add(&mut to, config, key, y)?;
    if !predicts_tokens(&to, config, "ForConditionalGeneration") {
        return Ok(to.finish(&[y]));
    }
    // mT5 ties the head as T5 does, and never scales.
    let scales = config.flag("scale_decoder_outputs").or(config.flag("tie_word_embeddings")) != Some(false);
    if scales && config.model_type() != Some("mt5") {
        let scale = Primitive::Scale(1.0 / (config.needed("d_model")? as f64).sqrt());
        y = to.node("decoder.scaled", scale, &[y.into()]);
    }
    let logits = tied_linear(&mut to, &table, "lm_head", &[], y)?;
    Ok(to.finish(&[logits]))
}

/// The table of words, which some files have under the names of the encoder and decoder.
fn table(to: &mut GraphBuilder, config: &Config, prefix: &str) -> Result<String> {
    let tables = ["shared", "encoder.embed_tokens", "decoder.embed_tokens"].map(|path| format!("{prefix}{path}"));
    let has = |path: &&String| to.headers().has(&format!("{path}.weight"));
    let table = tables.iter().find(has).unwrap_or(&tables[0]);
    let name = format!("{table}.weight");
    if let Some([vocabulary, width]) = to.headers().table(&name) {
        config.check("vocab_size", vocabulary, table)?;
        config.check("d_model", width, table)?;
    }
    let weight = to.weight(&name)?;
    let n_stacks = if has_decoder(to.headers()) { 2 } else { 1 };
    for other in tables[..=n_stacks].iter().filter(|path| *path != table) {
        to.alias(weight, &format!("{other}.weight"));
    }
    Ok(table.clone())
}

fn words(to: &mut GraphBuilder, table: &str, name: &str, source: InputSource, extents: Extents) -> Result<ValueId> {
    let ids = to.input_from(name, &[extents.batch, n_tokens(extents.tokens, None)], source);
    to.embedding(table, ids)
}

/// An encoder or a decoder.
struct T5Stack {
    path: String,
    head_width: usize,
    /// A bias for each head and each distance, `[heads, tokens, tokens]`.
    bias: ValueId,
    function: ElementFunction,
    eps: f64,
    /// The encoder's output, for a decoder.
    encoded: Option<ValueId>,
}

impl T5Stack {
    fn of(to: &mut GraphBuilder, config: &Config, path: &str, encoded: Option<ValueId>) -> Result<Self> {
        Ok(Self {
            path: path.into(),
            head_width: config.size("d_kv")?.unwrap_or(64),
            bias: relative_bias(to, config, path, encoded.is_some())?,
            function: function(config)?,
            eps: config.number("layer_norm_epsilon").unwrap_or(1e-6),
            encoded,
        })
    }

    fn add(&self, to: &mut GraphBuilder, config: &Config, key: &str, mut x: ValueId) -> Result<ValueId> {
        let layers = format!("{}.block.", self.path);
        for index in 0..n_layers(to, config, key, &layers)? {
            x = self.layer(to, &format!("{layers}{index}"), x)?;
        }
        to.rms_norm(&format!("{}.final_layer_norm", self.path), x, self.eps)
    }

    fn layer(&self, to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
        let at = |index: usize, name: &str| format!("{path}.layer.{index}.{name}");
        let settings = || Attention { scale: Some(1.0), ..Attention::full(1) };
        let norm = |index: usize| move |to: &mut GraphBuilder, x| to.rms_norm(&at(index, "layer_norm"), x, self.eps);
        to.begin_block(path);
        let own = at(0, "SelfAttention");
        let attend = |to: &mut GraphBuilder, x| {
            let settings = Attention { causal: self.encoded.is_some(), ..settings() };
            attention(to, &own, &NAMES, self.head_width, settings, Some(self.bias), x)
        };
        let mut x = pre_norm(to, &own, norm(0), attend, x)?;
        if let Some(encoded) = self.encoded {
            let cross = at(1, "EncDecAttention");
            let attend = |to: &mut GraphBuilder, x| {
                cross_attention(to, &cross, &NAMES, self.head_width, settings(), [x, encoded])
            };
            x = pre_norm(to, &cross, norm(1), attend, x)?;
        }
        let index = if self.encoded.is_some() { 2 } else { 1 };
        let inner = at(index, "DenseReluDense");
        let feed = |to: &mut GraphBuilder, x| match to.headers().has(&format!("{inner}.wi_0.weight")) {
            true => gated(to, &inner, ["wi_0", "wi_1", "wo"], self.function, x),
            false => feed_forward(to, [&format!("{inner}.wi"), &format!("{inner}.wo")], self.function, x),
        };
        let x = pre_norm(to, &inner, norm(index), feed, x)?;
        to.end_block();
        Ok(x)
    }
}

/// A bias for each head and each distance, `[heads, tokens, tokens]`. The first layer has the table of all.
fn relative_bias(to: &mut GraphBuilder, config: &Config, stack: &str, is_causal: bool) -> Result<ValueId> {
    let path = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias");
    let tokens = to.n_tokens();
    to.weight(&format!("{path}.weight"))?;
    let buckets = to.headers().table(&format!("{path}.weight")).map_or(32, |[rows, _]| rows);
    let longest = config.size("relative_attention_max_distance")?.unwrap_or(128);
    // In an encoder, half of the buckets are for keys after the query. Half of the rest is for single distances.
    let n_single = if is_causal { buckets / 2 } else { buckets / 4 };
    if buckets < 4 || longest <= n_single {
        let message =
            format!("found {buckets} buckets up to a distance of {longest}, expected 4 or more up to a larger one");
        return Err(Error::input(message).at(path));
    }
    let (name, source) = match is_causal {
        true => ("target_buckets", InputSource::TargetBuckets { buckets, longest }),
        false => ("relative_buckets", InputSource::RelativeBuckets { buckets, longest }),
    };
    let indices = to.input_from(name, &[tokens; 2], source);
    let rows = to.embedding(&path, indices)?;
    Ok(to.node(&format!("{path}.by_head"), Primitive::Transpose(vec![2, 0, 1]), &[rows.into()]))
}

/// The function of feed-forward blocks. Older files name it together with the gate.
fn function(config: &Config) -> Result<ElementFunction> {
    match config.text("feed_forward_proj").filter(|_| config.text("dense_act_fn").is_none()) {
        Some("gated-gelu") => Ok(ElementFunction::GeluTanh),
        Some("gated-silu") => Ok(ElementFunction::Silu),
        Some("relu" | "gated-relu") => Ok(ElementFunction::Relu),
        Some(other) => {
            Err(Error::input(format!("feed_forward_proj is {other:?}, which is not known")).at("config.json"))
        }
        None => activation(config, "dense_act_fn", ElementFunction::Relu),
    }
}
