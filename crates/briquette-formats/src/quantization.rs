//! Reads the quantization of other programs from `config.json`.

use crate::model_dir::CONFIG;
use crate::{ActivationRounding, ModelDir, TensorInfo, json, limits};
use briquette_core::{Error, Grouping, Result};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::Path;

/// The key in `config.json`.
pub const KEY: &str = "quantization_config";
/// The key in files of older versions of compressed-tensors.
pub(crate) const OLD_KEY: &str = "compression_config";
/// Endings of tensor names in quantized checkpoints, and the programs that write them.
const SIGNS: [(&str, &str); 9] = [
    (".qweight", "GPTQ or AWQ"),
    (".qzeros", "GPTQ or AWQ"),
    (".SCB", "bitsandbytes"),
    (".weight.absmax", "bitsandbytes"),
    (".weight.quant_map", "bitsandbytes"),
    (".weight_scale_inv", "fp8"),
    (".weight_scale", "compressed-tensors"),
    (".weight_packed", "compressed-tensors"),
    (".weight._data", "quanto"),
];

/// The keys of `config.json` that are read. Other keys are ignored.
#[derive(Deserialize)]
struct ConfigJson {
    quantization_config: Option<Box<RawValue>>,
    compression_config: Option<Box<RawValue>>,
    text_config: Option<Box<RawValue>>,
}

/// The method by which another program quantized a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum QuantMethod {
    /// The compressed-tensors library, with its configuration.
    CompressedTensors(Value),
    /// Another method, by name.
    Other(String),
}

/// The quantization scheme of some modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModuleScheme {
    /// The form of their weights.
    pub(crate) form: WeightForm,
    /// The rounding of their activations; `None` if these stay floats.
    activations: Option<ActivationRounding>,
    /// Whether fixed grids of activations have zero points.
    pub(crate) has_input_zeros: bool,
    /// The modules: names, patterns and classes.
    targets: Vec<String>,
}

/// The form of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeightForm {
    /// Whether codes are packed into 32-bit words.
    pub(crate) is_packed: bool,
    /// Width of a code: 4 or 8.
    pub(crate) n_bits: u8,
    /// Which weights share a scale.
    pub(crate) grouping: Grouping,
}

/// Reads the quantization method from the `config.json` of a directory; `None` if there is none.
///
/// # Errors
/// - Input: the file is not valid.
/// - Io: the file cannot be read.
pub(crate) fn read_config(directory: &ModelDir) -> Result<Option<QuantMethod>> {
    let name = Path::new(CONFIG);
    let Some(bytes) = directory.read(name, limits::MAX_SMALL_BYTES)? else { return Ok(None) };
    let path = directory.path().join(name);
    let config: ConfigJson = json::parse(&bytes, "the configuration", &path)?;
    let is_object = |raw: &RawValue| raw.get().starts_with('{');
    let text: Option<ConfigJson> = match config.text_config.filter(|raw| is_object(raw)) {
        Some(raw) => Some(json::parse(raw.get().as_bytes(), "the configuration", &path)?),
        None => None,
    };
    let places =
        [config.quantization_config, config.compression_config, text.and_then(|text| text.quantization_config)];
    let Some(raw) = places.into_iter().flatten().find(|raw| is_object(raw)) else { return Ok(None) };
    let value = json::value_of(&raw).map_err(|message| Error::input(message).at(KEY).at(path.display()))?;
    Ok(Some(method_of(&value)))
}

fn method_of(config: &Value) -> QuantMethod {
    let has = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    match config.get("quant_method").and_then(Value::as_str) {
        Some("compressed-tensors") => QuantMethod::CompressedTensors(config.clone()),
        Some(name) => QuantMethod::Other(name.to_string()),
        None if has("config_groups") || has("sparsity_config") => QuantMethod::CompressedTensors(config.clone()),
        None if has("load_in_8bit") || has("load_in_4bit") => QuantMethod::Other("bitsandbytes".into()),
        None => QuantMethod::Other("a method that its config.json does not name".into()),
    }
}

/// Returns the quantization method that the names of tensors show.
pub(crate) fn shown_by(tensors: &[TensorInfo]) -> Option<&'static str> {
    let sign = |name: &str| SIGNS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, method)| *method);
    tensors.iter().find_map(|info| sign(&info.name))
}

/// Returns the schemes of a compressed-tensors configuration.
///
/// # Errors
/// Input: a setting is not supported. The error names it.
pub(crate) fn schemes_of(config: &Value) -> Result<Vec<ModuleScheme>> {
    refuse_unread(config)?;
    let groups = config.get("config_groups").and_then(Value::as_object);
    let format = config.get("format").and_then(Value::as_str).unwrap_or("dense");
    groups
        .into_iter()
        .flatten()
        .map(|(name, group)| {
            scheme_of(group, format).map_err(|error| error.at(format_args!("{KEY}.config_groups.{name}")))
        })
        .collect()
}

fn unread(what: &str) -> Error {
    Error::input(format!(
        "{what} is not supported, only int-quantized and pack-quantized weights are; start from the model before quantization"
    ))
}

/// Refuses settings that change the meaning of the weights, or use parts that are not read.
fn refuse_unread(config: &Value) -> Result<()> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    if let Some(status) = text("quantization_status").filter(|status| *status != "compressed") {
        return Err(unread(&format!("the quantization status {status:?}")));
    }
    let is_set = |key: &&str| {
        let value = config.get(*key);
        value.is_some_and(|value| !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty()))
    };
    if let Some(key) = ["kv_cache_scheme", "transform_config"].iter().find(|key| is_set(key)) {
        return Err(unread(key));
    }
    let sparse = config.pointer("/sparsity_config/format").and_then(Value::as_str);
    match sparse.filter(|format| !["dense", "sparse-bitmask"].contains(format)) {
        Some(format) => Err(unread(&format!("the sparse format {format:?}"))),
        None => Ok(()),
    }
}

fn scheme_of(group: &Value, format: &str) -> Result<ModuleScheme> {
    let format = group.get("format").and_then(Value::as_str).unwrap_or(format);
    let is_packed = match format {
        "int-quantized" => false,
        "pack-quantized" => true,
        other => return Err(unread(&format!("the format {other:?}"))),
    };
    let input = group.get("input_activations").filter(|input| !input.is_null());
    let activations = ActivationRounding::of_group(group);
    if input.is_some_and(ActivationRounding::is_of_fixed_scale) && activations != Some(ActivationRounding::Fixed) {
        return Err(unread("a static scale of activations other than int8 with one for the whole tensor"));
    }
    let weights = group.get("weights").filter(|weights| weights.is_object());
    let weights =
        weights.ok_or_else(|| Error::input("found no weights, expected their scheme; the configuration is damaged"))?;
    let text = |key: &str| weights.get(key).and_then(Value::as_str);
    if text("type").is_some_and(|kind| kind != "int") {
        return Err(unread("a grid of a type other than int"));
    }
    if let Some(order) = text("actorder").filter(|order| !["static", "weight"].contains(order)) {
        return Err(unread(&format!("the activation order {order:?}")));
    }
    let n_bits = match weights.get("num_bits").and_then(Value::as_u64) {
        Some(8) => 8,
        Some(4) => 4,
        other => return Err(unread(&format!("{format} of {} bits", other.unwrap_or(0)))),
    };
    if activations == Some(ActivationRounding::Fixed) && n_bits != 8 {
        return Err(unread(&format!("a static scale of activations with weights of {n_bits} bits")));
    }
    let targets = group.get("targets").and_then(Value::as_array).into_iter().flatten();
    Ok(ModuleScheme {
        form: WeightForm { is_packed, n_bits, grouping: grouping_of(weights)? },
        activations,
        has_input_zeros: input.is_some_and(|input| input.get("symmetric").and_then(Value::as_bool) == Some(false)),
        targets: targets.filter_map(|target| Some(target.as_str()?.to_string())).collect(),
    })
}

/// Keeps the schemes that name the module of a weight, if any does.
///
/// A scheme that names a module has priority over one that names a class of modules.
pub(crate) fn by_module<'a>(schemes: Vec<&'a ModuleScheme>, weight: &str) -> Vec<&'a ModuleScheme> {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    let is_named = |scheme: &&ModuleScheme| scheme.targets.iter().any(|name| name == module);
    let named: Vec<&ModuleScheme> = schemes.iter().copied().filter(is_named).collect();
    if named.is_empty() { schemes } else { named }
}

/// Returns the rounding of the activations of a weight that matches these schemes; unknown if they differ.
pub(crate) fn activations_of(schemes: &[&ModuleScheme]) -> Option<ActivationRounding> {
    let mut found: Vec<Option<ActivationRounding>> = schemes.iter().map(|scheme| scheme.activations).collect();
    found.dedup();
    match found.as_slice() {
        [one] => *one,
        _ => Some(ActivationRounding::Other),
    }
}

fn grouping_of(weights: &Value) -> Result<Grouping> {
    let group_size = weights.get("group_size").and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
    match (weights.get("strategy").and_then(Value::as_str), group_size) {
        (Some("tensor"), _) | (None, None) => Ok(Grouping::Tensor),
        (Some("channel"), _) => Ok(Grouping::Row),
        (Some("group") | None, Some(size)) if size > 0 => Ok(Grouping::Group(size)),
        (strategy, _) => Err(unread(&format!("the strategy {:?}", strategy.unwrap_or("")))),
    }
}
