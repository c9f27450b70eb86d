//! The `quantization_config` that tells transformers and vLLM what an output holds.

use crate::Manifest;
use crate::manifest::Entry;
use crate::profile::is_int_quantized;
use briquette_core::Grouping;
use briquette_core::encoded::Codes;
use serde_json::{Value, json};

/// Activations are rounded to int8 for each token, around zero.
pub const SYMMETRIC: &str = "int8-dynamic-symmetric";
/// Activations are rounded to int8 for each token, with a zero point.
pub const ASYMMETRIC: &str = "int8-dynamic-asymmetric";
/// The version of compressed-tensors whose layout this is.
const VERSION: &str = "0.15.0";

/// The configuration of a directory; none where nothing in it is coded.
///
/// `linear` are the names of the weights of Linear layers: those that are not coded are named in `ignore`, for readers
/// take every other Linear for a coded one. `config` is the model's `config.json`.
pub fn of(manifest: &Manifest, linear: &[&str], config: Option<&[u8]>) -> Option<Value> {
    let mut groups: Vec<(Value, Vec<&str>)> = Vec::new();
    for (name, entry) in &manifest.tensors {
        let Some(scheme) = entry.coding.codes.map(|codes| scheme_of(codes, entry)) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, modules)) => modules.push(module_of(name)),
            None => groups.push((scheme, vec![module_of(name)])),
        }
    }
    let first = groups.first()?.0.get("format").cloned();
    let is_one = groups.iter().all(|(scheme, _)| scheme.get("format") == first.as_ref());
    let format = first.filter(|_| is_one).unwrap_or_else(|| json!("mixed-precision"));
    let n_groups = groups.len();
    let group = |(number, (mut scheme, modules)): (usize, (Value, Vec<&str>))| {
        scheme["targets"] = if n_groups == 1 { json!(["Linear"]) } else { json!(modules) };
        (format!("group_{number}"), scheme)
    };
    let config_groups: serde_json::Map<String, Value> = groups.into_iter().enumerate().map(group).collect();
    Some(json!({
        "quant_method": "compressed-tensors",
        "version": VERSION,
        "format": format,
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "ignore": ignored(manifest, linear, config),
        "sparsity_config": {},
        "transform_config": {},
        "config_groups": config_groups,
    }))
}

fn module_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Modules of Linear layers that are left as they were. A head that shares the embedding has no weight of its own in
/// the file, and is a Linear all the same.
fn ignored(manifest: &Manifest, linear: &[&str], config: Option<&[u8]>) -> Vec<String> {
    let is_left = |name: &&&str| manifest.tensors.get(**name).is_some_and(|entry| entry.coding.codes.is_none());
    let weights = linear.iter().filter(is_left).filter(|name| name.ends_with(".weight"));
    let mut modules: Vec<String> = weights.map(|name| module_of(name).to_string()).collect();
    let config: Option<Value> = config.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let architectures = config.as_ref().and_then(|config| config.get("architectures")?.as_array());
    let is_causal = |name: &Value| name.as_str().is_some_and(|name| name.ends_with("ForCausalLM"));
    if architectures.is_some_and(|names| names.iter().any(is_causal))
        && !manifest.tensors.contains_key("lm_head.weight")
    {
        modules.push("lm_head".into());
    }
    modules.sort();
    modules
}

fn scheme_of(codes: Codes, entry: &Entry) -> Value {
    let activations = entry.activations.as_deref().filter(|_| is_int_quantized(codes, entry.activations.as_deref()));
    let (strategy, group_size) = match codes.grouping {
        Grouping::Tensor => ("tensor", None),
        Grouping::Row => ("channel", None),
        Grouping::Group(size) => ("group", Some(size)),
    };
    let input = activations.map(|kind| {
        let mut input = arguments(8, kind == SYMMETRIC, "token", None);
        (input["dynamic"], input["observer"]) = (json!(true), Value::Null);
        input
    });
    json!({
        "format": if activations.is_some() { "int-quantized" } else { "pack-quantized" },
        "weights": arguments(codes.bits, true, strategy, group_size),
        "input_activations": input,
        "output_activations": null,
    })
}

fn arguments(n_bits: u8, symmetric: bool, strategy: &str, group_size: Option<usize>) -> Value {
    json!({
        "num_bits": n_bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": group_size,
        "block_structure": null, "dynamic": false, "actorder": null, "observer": "minmax", "observer_kwargs": {},
    })
}
