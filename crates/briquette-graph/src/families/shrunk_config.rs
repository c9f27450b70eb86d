//! The `config.json` of a network without some of its units or blocks.

use crate::config::Config;
use crate::coupling::{Couplings, GroupKind, UnitId};
use crate::graph::Graph;
use crate::op::{Composite, Op};
use briquette_core::{Error, Result};
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
    /// The width of the network, and the heads that divide it where no key has the width of a head.
    width: Option<(&'static str, &'static str)>,
    /// Blocks.
    blocks: &'static str,
}

/// Lists of `config.json` with an entry for each block.
const LISTS: [&str; 2] = ["layer_types", "no_rope_layers"];

impl SizeKeys {
    fn of(config: &Config) -> Self {
        let llama = Some(("num_attention_heads", Some("num_key_value_heads"), "head_dim"));
        let widths = [
            ("n_embd", "n_head"),
            ("dim", "n_heads"),
            ("d_model", "num_heads"),
            ("hidden_size", "num_attention_heads"),
        ];
        let has = |(width, heads): &(&str, &str)| config.number(width).is_some() && config.number(heads).is_some();
        let width = widths.into_iter().find(has);
        let keys = |inner, heads, blocks| Self { inner: Some(inner), heads, width, blocks };
        match config.model_type().unwrap_or_default() {
            "gpt2" => keys("n_inner", None, "n_layer"),
            "nomic_bert" if config.number("n_inner").is_some() => keys("n_inner", None, "n_layer"),
            "opt" => keys("ffn_dim", None, "num_hidden_layers"),
            "distilbert" => keys("hidden_dim", None, "n_layers"),
            "t5" | "mt5" => keys("d_ff", Some(("num_heads", None, "d_kv")), "num_layers"),
            "qwen3_moe" => keys("moe_intermediate_size", llama, "num_hidden_layers"),
            "llama" | "mistral" | "qwen2" | "qwen3" | "phi3" | "smollm3" | "granite" | "mixtral" | "gemma"
            | "gemma2" | "gemma3" | "gemma3_text" => keys("intermediate_size", llama, "num_hidden_layers"),
            "dinov2" | "swin" => Self { inner: None, heads: None, width, blocks: "num_hidden_layers" },
            _ => keys("intermediate_size", None, "num_hidden_layers"),
        }
    }
}

/// Returns the keys of a network without some units.
///
/// A key is a single number, so that it changes only if all blocks have equal sizes. The width of heads is written where a
/// key has it, because programs otherwise divide the width of the network by its heads.
///
/// # Errors
/// Config: the new width is no multiple of the width of a head, and no key has the latter.
pub fn without_units(
    config: &Config,
    shrunk: &Graph,
    couplings: &Couplings,
    removed: &BTreeSet<UnitId>,
) -> Result<ConfigChange> {
    let kinds: BTreeSet<GroupKind> = removed.iter().map(|unit| couplings.kinds[unit.group]).collect();
    let (keys, mut change) = (SizeKeys::of(config), ConfigChange::default());
    for &kind in kinds.iter().filter(|kind| **kind != GroupKind::Width) {
        match (kind, keys.inner, keys.heads) {
            (GroupKind::FeedForward, Some(key), _) => match inner_of(shrunk, couplings, removed).as_slice() {
                [inner] => change.values.push((key.into(), json!(inner))),
                sizes => change.lost.push(format!("{key} is one number, and layers have {}", listed(sizes))),
            },
            (GroupKind::Heads, _, Some(key)) => of_heads(config, shrunk, key, &mut change),
            // The new width may fit the heads.
            (GroupKind::Heads, _, None) if kinds.contains(&GroupKind::Width) => {}
            (GroupKind::Heads, _, None) => change.lost.push("no key has the width of a head".into()),
            (kind, ..) => change.lost.push(format!("no key counts the {kind} of each layer")),
        }
    }
    if !change.lost.is_empty() {
        // Other programs find a size that contradicts a tensor and say so, instead of half a change.
        change.values.clear();
    }
    if kinds.contains(&GroupKind::Width) {
        of_width(config, shrunk, &keys, sizes_of_width(couplings, removed), &mut change)?;
    }
    Ok(change)
}

/// The different numbers of units that are left in groups of the network's width.
fn sizes_of_width(couplings: &Couplings, removed: &BTreeSet<UnitId>) -> Vec<usize> {
    let of_kind = (0..couplings.groups.len()).filter(|group| couplings.kinds[*group] == GroupKind::Width);
    let left =
        |group: usize| couplings.groups[group].units.len() - removed.iter().filter(|unit| unit.group == group).count();
    of_kind.map(left).collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Adds the keys of a new width.
///
/// They change even if other programs cannot load the network: Briquette compares them with the tensors.
fn of_width(
    config: &Config,
    shrunk: &Graph,
    keys: &SizeKeys,
    sizes: Vec<usize>,
    change: &mut ConfigChange,
) -> Result<()> {
    let (Some((key, heads_key)), [width]) = (keys.width, sizes.as_slice()) else {
        change.lost.push("no key has the width of each layer".into());
        return Ok(());
    };
    change.values.push((key.into(), json!(width)));
    if let Some(heads) = keys.heads {
        if !change.values.iter().any(|(own, _)| own == heads_key) {
            of_heads(config, shrunk, heads, change);
        }
        return Ok(());
    }
    let number = |key| config.number(key).unwrap_or(0.0) as usize;
    let head_width = number(key).checked_div(number(heads_key)).filter(|width| *width > 0).unwrap_or(1);
    if !width.is_multiple_of(head_width) {
        let message = format!("found a width of {width}, expected a multiple of the {head_width} channels of a head");
        return Err(Error::config(format!("{message}; set multiple = {head_width}")).at("shrink"));
    }
    change.values.retain(|(own, _)| own != heads_key);
    change.values.push((heads_key.into(), json!(width / head_width)));
    let heads = heads_in(shrunk);
    if heads.iter().any(|[heads, _]| heads * head_width != *width) {
        change.lost.push(format!("{heads_key} times the width of a head is not {key}"));
    }
    Ok(())
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
    values.extend(dense_blocks(config, chosen));
    // The first layer of ModernBERT has no norm before its attention, and other programs read none.
    let loses_first = config.model_type() == Some("modernbert") && chosen.first() != Some(&0);
    let lost = loses_first.then(|| "the first layer has a norm that other programs do not read".to_string());
    ConfigChange { values, lost: lost.into_iter().collect() }
}

/// Returns the keys for blocks without experts among those with experts, by their new numbers.
fn dense_blocks(config: &Config, chosen: &[usize]) -> Vec<(String, Value)> {
    let (listed, step) = (config.numbers("mlp_only_layers"), config.number("decoder_sparse_step"));
    if listed.is_none() && step.is_none() {
        return Vec::new();
    }
    let (listed, step) = (listed.unwrap_or_default(), step.map_or(1, |step| step.clamp(1.0, 1e6) as usize));
    let is_dense = |block: &usize| listed.contains(&(*block as f64)) || !(block + 1).is_multiple_of(step);
    let dense: Vec<usize> = (0..chosen.len()).filter(|&place| is_dense(&chosen[place])).collect();
    vec![("mlp_only_layers".into(), json!(dense)), ("decoder_sparse_step".into(), json!(1))]
}

/// Returns the keys of a network whose mixtures have `n` experts each.
pub fn with_experts(config: &Config, n: usize) -> ConfigChange {
    let key =
        ["num_local_experts", "num_experts", "n_routed_experts"].into_iter().find(|key| config.number(key).is_some());
    match key {
        Some(key) => ConfigChange { values: vec![(key.into(), json!(n))], lost: Vec::new() },
        None => ConfigChange { values: Vec::new(), lost: vec!["no key counts the experts".into()] },
    }
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
    let sizes = heads_in(shrunk);
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

/// The different numbers of heads of queries and of keys.
fn heads_in(shrunk: &Graph) -> Vec<[usize; 2]> {
    let heads = shrunk.nodes.iter().filter_map(|node| match &node.op {
        Op::Composite(Composite::Attention(settings)) => Some([settings.heads, settings.kv_heads]),
        _ => None,
    });
    heads.collect::<BTreeSet<_>>().into_iter().collect()
}

fn listed(sizes: &[usize]) -> String {
    match (sizes.first(), sizes.last()) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "none".into(),
    }
}
