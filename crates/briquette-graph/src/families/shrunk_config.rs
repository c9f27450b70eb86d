//! The `config.json` of a network without some of its units or blocks.

use crate::config::Config;
use crate::coupling::{Couplings, GroupKind, UnitId};
use crate::graph::Graph;
use crate::op::{Composite, Op};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// New values of keys, and why other programs cannot load the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigChange {
    /// Keys with their new values.
    pub values: Vec<(String, Value)>,
    /// Reasons why `config.json` cannot describe the network; empty if other programs can load it.
    pub lost: Vec<String>,
}

/// The keys of a `model_type` that count units and blocks.
struct SizeKeys {
    /// Channels of feed-forward blocks.
    inner: Option<&'static str>,
    /// Heads of queries, heads of keys if there is a key, and the width of a head.
    heads: Option<(&'static str, Option<&'static str>, &'static str)>,
    /// Blocks.
    blocks: &'static str,
}

/// Lists of `config.json` with an entry for each block.
const LISTS: [&str; 2] = ["layer_types", "no_rope_layers"];

impl SizeKeys {
    fn of(config: &Config) -> Self {
        let llama = Some(("num_attention_heads", Some("num_key_value_heads"), "head_dim"));
        let keys = |inner, heads, blocks| Self { inner: Some(inner), heads, blocks };
        match config.model_type().unwrap_or_default() {
            "gpt2" => keys("n_inner", None, "n_layer"),
            "nomic_bert" if config.number("n_inner").is_some() => keys("n_inner", None, "n_layer"),
            "opt" => keys("ffn_dim", None, "num_hidden_layers"),
            "distilbert" => keys("hidden_dim", None, "n_layers"),
            "t5" | "mt5" => keys("d_ff", Some(("num_heads", None, "d_kv")), "num_layers"),
            "qwen3_moe" => keys("moe_intermediate_size", llama, "num_hidden_layers"),
            "llama" | "mistral" | "qwen2" | "qwen3" | "phi3" | "smollm3" | "granite" | "mixtral" | "gemma"
            | "gemma2" | "gemma3" | "gemma3_text" => keys("intermediate_size", llama, "num_hidden_layers"),
            "dinov2" | "swin" => Self { inner: None, heads: None, blocks: "num_hidden_layers" },
            _ => keys("intermediate_size", None, "num_hidden_layers"),
        }
    }
}

/// Returns the keys of a network without some units.
///
/// A key is a single number, so that it changes only if all blocks have equal sizes. The width of heads is written where a
/// key has it, because programs otherwise divide the width of the network by its heads.
pub fn without_units(
    config: &Config,
    shrunk: &Graph,
    couplings: &Couplings,
    removed: &BTreeSet<UnitId>,
) -> ConfigChange {
    let kinds: BTreeSet<GroupKind> = removed.iter().map(|unit| couplings.kinds[unit.group]).collect();
    let (keys, mut change) = (SizeKeys::of(config), ConfigChange::default());
    for kind in kinds {
        match (kind, keys.inner, keys.heads) {
            (GroupKind::FeedForward, Some(key), _) => match inner_of(shrunk, couplings, removed).as_slice() {
                [inner] => change.values.push((key.into(), json!(inner))),
                sizes => change.lost.push(format!("{key} is one number, and layers have {}", listed(sizes))),
            },
            (GroupKind::Heads, _, Some(key)) => of_heads(config, shrunk, key, &mut change),
            (GroupKind::Heads, _, None) => change.lost.push("no key has the width of a head".into()),
            (kind, ..) => change.lost.push(format!("no key counts the {kind} of each layer")),
        }
    }
    if !change.lost.is_empty() {
        // Other programs find a size that contradicts a tensor and say so, instead of half a change.
        change.values.clear();
    }
    change
}

/// Returns the keys of a network with some of its blocks.
pub fn with_blocks(config: &Config, chosen: &[usize], n_before: usize) -> ConfigChange {
    let mut values = vec![(SizeKeys::of(config).blocks.to_string(), json!(chosen.len()))];
    for key in LISTS {
        let list = config.list(key).filter(|list| list.len() == n_before);
        values.extend(
            list.map(|list| (key.to_string(), chosen.iter().map(|&block| list[block].clone()).collect::<Value>())),
        );
    }
    ConfigChange { values, lost: Vec::new() }
}

/// The different numbers of units that are left in feed-forward groups of blocks, or of heads that are cut too.
fn inner_of(shrunk: &Graph, couplings: &Couplings, removed: &BTreeSet<UnitId>) -> Vec<usize> {
    let is_cut = |group: usize| removed.iter().any(|unit| unit.group == group);
    let left = |(group, _): (usize, &GroupKind)| {
        let gone = removed.iter().filter(|unit| unit.group == group).count();
        couplings.groups[group].units.len() - gone
    };
    let of_kind = couplings.kinds.iter().enumerate().filter(|(group, kind)| {
        let counts = || is_cut(*group) || couplings.groups[*group].is_in_block(shrunk);
        **kind == GroupKind::FeedForward && counts()
    });
    of_kind.map(left).collect::<BTreeSet<usize>>().into_iter().collect()
}

fn of_heads(
    config: &Config,
    shrunk: &Graph,
    (heads_key, kv_key, width_key): (&str, Option<&str>, &str),
    change: &mut ConfigChange,
) {
    let mut sizes = BTreeSet::new();
    for node in &shrunk.nodes {
        if let Op::Composite(Composite::Attention(settings)) = &node.op {
            sizes.insert([settings.heads, settings.kv_heads]);
        }
    }
    let sizes: Vec<[usize; 2]> = sizes.into_iter().collect();
    let [[heads, kv_heads]] = sizes.as_slice() else {
        let heads: Vec<usize> = sizes.iter().map(|[heads, _]| *heads).collect();
        change.lost.push(format!("{heads_key} is one number, and layers have {}", listed(&heads)));
        return;
    };
    let usual = || {
        let (width, heads) = (config.number("hidden_size")?, config.number(heads_key)?);
        (heads >= 1.0).then(|| (width / heads) as u64)
    };
    let width = config.number(width_key).map(|width| width as u64).or_else(usual);
    change.values.push((heads_key.into(), json!(heads)));
    change.values.extend(kv_key.map(|key| (key.to_string(), json!(kv_heads))));
    change.values.extend(width.map(|width| (width_key.to_string(), json!(width))));
}

fn listed(sizes: &[usize]) -> String {
    match (sizes.first(), sizes.last()) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "none".into(),
    }
}
