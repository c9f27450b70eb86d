//! Writes the `quantization_config` that describes an output to transformers and vLLM.

use crate::activations::STATIC;
use crate::loadable::LoadableFamily;
use crate::manifest::ManifestEntry;
use crate::output_format::is_int_quantized;
use crate::{Manifest, heads};
use briquette_core::Grouping;
use briquette_core::encoded::Codes;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Symmetric int8 activations with one dynamic scale per token.
pub const SYMMETRIC: &str = "int8-dynamic-symmetric";
/// Asymmetric int8 activations with one dynamic scale and zero point per token.
pub const ASYMMETRIC: &str = "int8-dynamic-asymmetric";
/// The version of compressed-tensors with this layout.
const VERSION: &str = "0.15.0";

/// A pattern for all experts of a family, independent of their names.
const EXPERTS: &str = r"re:.*\.experts\..*";

/// Returns the configuration of a directory; `None` if no tensor has codes.
///
/// `linear` has the names of the weights of Linear layers. Readers assume that every Linear layer is quantized,
/// so unquantized layers are listed in `ignore`. `ignore` also has the layers that transformers creates for a
/// `family` though files do not have them. Without a `family`, it has a pattern for heads.
pub fn of(manifest: &Manifest, linear: &[&str], family: Option<&LoadableFamily>) -> Option<Value> {
    let groups = groups_of(manifest);
    let first = groups.first()?.0.get("format").cloned();
    let is_one = groups.iter().all(|(scheme, _)| scheme.get("format") == first.as_ref());
    let format = first.filter(|_| is_one).unwrap_or_else(|| json!("mixed-precision"));
    let n_groups = groups.len();
    let group = |(number, (mut scheme, names)): (usize, (Value, Vec<&str>))| {
        let targets = if n_groups == 1 { vec!["Linear".into()] } else { targets_of(manifest, &names, family) };
        scheme["targets"] = json!(targets);
        (format!("group_{number}"), scheme)
    };
    let config_groups: serde_json::Map<String, Value> = groups.into_iter().enumerate().map(group).collect();
    let ignore = match family {
        Some(family) => ignored_of(manifest, linear, family),
        None => ignored(manifest, linear),
    };
    Some(json!({
        "quant_method": "compressed-tensors",
        "version": VERSION,
        "format": format,
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "ignore": ignore,
        "sparsity_config": {},
        "transform_config": {},
        "config_groups": config_groups,
    }))
}

/// Returns the schemes in a manifest, each with the names of its tensors.
fn groups_of(manifest: &Manifest) -> Vec<(Value, Vec<&str>)> {
    let mut groups: Vec<(Value, Vec<&str>)> = Vec::new();
    for (name, entry) in &manifest.tensors {
        let Some(scheme) = entry.coding.codes.map(|codes| scheme_of(codes, entry)) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, names)) => names.push(name),
            None => groups.push((scheme, vec![name])),
        }
    }
    groups
}

fn module_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn names_of(manifest: &Manifest) -> impl Iterator<Item = &str> + Clone {
    manifest.tensors.keys().map(String::as_str)
}

/// Returns the modules of a group under all their names. Readers find the scheme of experts by one pattern.
fn targets_of(manifest: &Manifest, names: &[&str], family: Option<&LoadableFamily>) -> Vec<String> {
    let Some(family) = family else { return names.iter().map(|name| module_of(name).to_string()).collect() };
    let is_bare = family.is_bare(names_of(manifest));
    let (experts, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| family.is_expert(name));
    let experts = experts.first().map(|_| EXPERTS.to_string());
    let others = others.into_iter().flat_map(|name| family.aliases(module_of(name), is_bare));
    others.chain(experts).collect()
}

/// Returns the modules of unquantized Linear layers under all their names, and those that files do not have.
fn ignored_of(manifest: &Manifest, linear: &[&str], family: &LoadableFamily) -> Vec<String> {
    let is_bare = family.is_bare(names_of(manifest));
    let linear: BTreeSet<&str> = linear.iter().copied().collect();
    let is_left = |(name, entry): &(&String, &ManifestEntry)| {
        let is_linear = || linear.contains(name.as_str()) || family.is_linear(name) || family.is_head(name);
        entry.coding.codes.is_none() && name.ends_with(".weight") && is_linear()
    };
    let left = manifest.tensors.iter().filter(is_left);
    let mut modules: Vec<String> = left.flat_map(|(name, _)| family.aliases(module_of(name), is_bare)).collect();
    modules.extend(family.unsaved(names_of(manifest)));
    modules.sort();
    modules.dedup();
    modules
}

/// Returns the ignored modules if the family is unknown.
///
/// A pattern matches its head, which has no weight in the file if it shares the embedding.
fn ignored(manifest: &Manifest, linear: &[&str]) -> Vec<String> {
    let is_left = |name: &&&str| manifest.tensors.get(**name).is_some_and(|entry| entry.coding.codes.is_none());
    let weights = linear.iter().filter(is_left).filter(|name| name.ends_with(".weight"));
    let mut modules: Vec<String> = weights.map(|name| module_of(name).to_string()).collect();
    modules.push(heads::pattern());
    modules.sort();
    modules
}

fn scheme_of(codes: Codes, entry: &ManifestEntry) -> Value {
    let activations = entry.activations.as_deref().filter(|_| is_int_quantized(codes, entry.activations.as_deref()));
    let (strategy, group_size) = match codes.grouping {
        Grouping::Tensor => ("tensor", None),
        Grouping::Row => ("channel", None),
        Grouping::Group(size) => ("group", Some(size)),
    };
    let input = activations.map(|kind| {
        if kind == STATIC {
            return arguments(8, false, "tensor", None);
        }
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
