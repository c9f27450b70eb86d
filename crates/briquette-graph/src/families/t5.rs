//! The encoder of T5 and mT5: RMS norms before each part, one table of relative position biases, scores without a scale.

use super::extents::Extents;
use super::labels::classes;
use super::layers::{
    ProjectionNames, activation, attention, feed_forward, gated, n_layers, n_tokens, pre_norm, prefix_of,
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

pub(super) fn has_names(headers: &Headers) -> bool {
    PREFIXES.iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}"))) && !headers.has_prefix("decoder.")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &PREFIXES, FIRST);
    if headers.has_prefix(&format!("{prefix}decoder.")) {
        let message = "it has a decoder, and only the encoder of T5 has a graph; save it as T5EncoderModel";
        return Err(Error::input(message));
    }
    let mut to = GraphBuilder::new("T5", headers);
    let x = embeddings(&mut to, config, prefix, extents)?;
    let eps = config.number("layer_norm_epsilon").unwrap_or(1e-6);
    let layers = format!("{prefix}encoder.block.");
    let bias = relative_bias(&mut to, config, &format!("{layers}0.layer.0.SelfAttention.relative_attention_bias"))?;
    let settings = T5Layers { head_width: config.size("d_kv")?.unwrap_or(64), bias, function: function(config)?, eps };
    let mut x = x;
    for index in 0..n_layers(&to, config, "num_layers", &layers)? {
        x = settings.add(&mut to, &format!("{layers}{index}"), x)?;
    }
    x = to.rms_norm(&format!("{prefix}encoder.final_layer_norm"), x, eps)?;
    let classes = classes(&mut to, config, "classifier", x, x)?;
    Ok(to.finish(&Vec::from_iter([x].into_iter().chain(classes))))
}

/// The words, whose table some files have under the name of the encoder.
fn embeddings(to: &mut GraphBuilder, config: &Config, prefix: &str, extents: Extents) -> Result<ValueId> {
    let tables = [format!("{prefix}shared"), format!("{prefix}encoder.embed_tokens")];
    let has = |path: &&String| to.headers().has(&format!("{path}.weight"));
    let table = tables.iter().find(has).unwrap_or(&tables[0]);
    if let Some([vocabulary, width]) = to.headers().table(&format!("{table}.weight")) {
        config.check("vocab_size", vocabulary, table)?;
        config.check("d_model", width, table)?;
    }
    let ids = to.input_from("input_ids", &[extents.batch, n_tokens(extents.tokens, None)], InputSource::TokenIds);
    let x = to.embedding(table, ids)?;
    let [shared, own] = tables.each_ref().map(|path| format!("{path}.weight"));
    if to.headers().has(&shared) {
        let weight = to.weight(&shared)?;
        to.alias(weight, &own);
    }
    Ok(x)
}

/// A bias for each head and each distance, `[heads, tokens, tokens]`. The first layer has the table of all.
fn relative_bias(to: &mut GraphBuilder, config: &Config, path: &str) -> Result<ValueId> {
    let tokens = to.n_tokens();
    let buckets = to.headers().table(&format!("{path}.weight")).map_or(32, |[rows, _]| rows);
    let longest = config.size("relative_attention_max_distance")?.unwrap_or(128);
    // Half of the buckets are for keys after the query, and half of each half for single distances.
    if buckets < 4 || longest <= buckets / 4 {
        let message =
            format!("found {buckets} buckets up to a distance of {longest}, expected 4 or more up to a larger one");
        return Err(Error::input(message).at(path));
    }
    let source = InputSource::RelativeBuckets { buckets, longest };
    let indices = to.input_from("relative_buckets", &[tokens; 2], source);
    let rows = to.embedding(path, indices)?;
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

/// The settings of layers.
struct T5Layers {
    head_width: usize,
    bias: ValueId,
    function: ElementFunction,
    eps: f64,
}

impl T5Layers {
    fn add(&self, to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
        let at = |name: &str| format!("{path}.layer.{name}");
        let (own, inner) = (at("0.SelfAttention"), at("1.DenseReluDense"));
        let settings = Attention { scale: Some(1.0), ..Attention::full(1) };
        let norm = |path: String| move |to: &mut GraphBuilder, x| to.rms_norm(&path, x, self.eps);
        to.begin_block(path);
        let attend =
            |to: &mut GraphBuilder, x| attention(to, &own, &NAMES, self.head_width, settings, Some(self.bias), x);
        let x = pre_norm(to, &own, norm(at("0.layer_norm")), attend, x)?;
        let feed = |to: &mut GraphBuilder, x| match to.headers().has(&format!("{inner}.wi_0.weight")) {
            true => gated(to, &inner, ["wi_0", "wi_1", "wo"], self.function, x),
            false => feed_forward(to, [&format!("{inner}.wi"), &format!("{inner}.wo")], self.function, x),
        };
        let x = pre_norm(to, &inner, norm(at("1.layer_norm")), feed, x)?;
        to.end_block();
        Ok(x)
    }
}
