//! The sizes of a transformer in its config.json.

use crate::config::Config;
use crate::graph::Graph;
use crate::op::{Composite, Op};
use briquette_core::{Error, Result};

const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "dim", "d_model"];
const EMBEDDING: [&str; 2] = ["embedding_size", "word_embed_proj_dim"];
const INNER: [&str; 5] = ["intermediate_size", "n_inner", "hidden_dim", "ffn_dim", "d_ff"];
const MLP_RATIO: &str = "mlp_ratio";
const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];
const KEY_HEADS: [&str; 1] = ["num_key_value_heads"];
const HEAD_WIDTH: [&str; 2] = ["head_dim", "d_kv"];
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const EXPERTS: [&str; 2] = ["num_local_experts", "num_experts"];
const EXPERT_INNER: [&str; 1] = ["moe_intermediate_size"];

/// Whether a key of config.json has a size that [`resized`](super::resized) changes.
pub fn is_size(key: &str) -> bool {
    let keys = [&WIDTH[..], &EMBEDDING, &INNER, &[MLP_RATIO], &HEADS, &KEY_HEADS, &HEAD_WIDTH, &LAYERS, &EXPERT_INNER];
    keys.into_iter().flatten().any(|known| *known == key)
}

/// The sizes of a transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) width: usize,
    pub(super) embedding: usize,
    pub(super) inner: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) head_width: usize,
    pub(super) layers: usize,
    pub(super) experts: usize,
    pub(super) expert_inner: usize,
}

impl Sizes {
    /// Reads the sizes. Heads of keys are as many as heads of queries where the file has no number of them.
    ///
    /// # Errors
    /// - Config: the network has no attention.
    /// - Input: a size is missing or invalid, or heads do not divide the width.
    pub(super) fn of(config: &Config, graph: &Graph) -> Result<Self> {
        if !graph.nodes.iter().any(|node| matches!(node.op, Op::Composite(Composite::Attention(_)))) {
            return Err(Error::config("its sizes do not follow from keys of config.json"));
        }
        let width = needed(config, &WIDTH)?;
        let heads = needed(config, &HEADS)?;
        let head_width = match first(config, &HEAD_WIDTH)? {
            Some(width) => width,
            None if width.is_multiple_of(heads) => width / heads,
            None => return Err(Error::input(format!("{heads} heads do not divide {width} features")).at("config.json")),
        };
        let inner = match (config.number(MLP_RATIO), first(config, &INNER)?) {
            (Some(ratio), _) => (ratio * width as f64) as usize,
            (None, Some(inner)) => inner,
            // GPT-2's default.
            (None, None) => 4 * width,
        };
        Ok(Self {
            width,
            embedding: first(config, &EMBEDDING)?.unwrap_or(width),
            inner,
            heads,
            key_heads: first(config, &KEY_HEADS)?.unwrap_or(heads),
            head_width,
            layers: config.layers(known(config, &LAYERS)?)?,
            experts: first(config, &EXPERTS)?.unwrap_or(0),
            expert_inner: first(config, &EXPERT_INNER)?.unwrap_or(inner),
        })
    }
}

/// The first of several keys that the file has.
fn known<'k>(config: &Config, keys: &[&'k str]) -> Result<&'k str> {
    let has = |key: &&&str| config.number(key).is_some();
    let missing = || Error::config(format!("its config.json has no {}; its sizes cannot be changed", keys[0]));
    keys.iter().find(has).copied().ok_or_else(missing)
}

fn first(config: &Config, keys: &[&str]) -> Result<Option<usize>> {
    keys.iter().map(|key| config.size(key)).find(|size| !matches!(size, Ok(None))).unwrap_or(Ok(None))
}

fn needed(config: &Config, keys: &[&str]) -> Result<usize> {
    config.needed(known(config, keys)?)
}
