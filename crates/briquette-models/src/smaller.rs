//! Smaller networks of the same family: some of a model's layers, or other sizes.

use crate::config::Folder;
use crate::{BertConfig, DigitsCnnConfig, LlamaConfig, LoadedModel, Network};
use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Sizes that what goes in and what comes out depend on: a student keeps its teacher's.
const SHARED: [&str; 7] = [
    "vocab_size",
    "num_labels",
    "image_size",
    "in_channels",
    "pixel_scale",
    "max_position_embeddings",
    "tie_word_embeddings",
];
/// The kind of each layer's attention, one after the other.
const LAYER_TYPES: &str = "layer_types";

/// How a network is smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Smaller {
    /// These of its layers, with their weights.
    Layers(Vec<usize>),
    /// Other values in its config.json, with random weights.
    Sizes(Map<String, Value>),
}

/// A smaller network than `model`, which was loaded from `checkpoint`, on `device`; and its config.json.
///
/// Random weights follow from the device's seed.
///
/// # Errors
/// Config where the architecture has no such layers or sizes, or would take or give something else than the model; Input
/// where its config.json is damaged.
pub fn smaller(
    model: &LoadedModel,
    checkpoint: &Checkpoint,
    how: &Smaller,
    device: &Device,
) -> Result<(LoadedModel, Vec<u8>)> {
    let folder = Folder::of(checkpoint);
    let mut config: Map<String, Value> = folder.read("config.json")?.unwrap_or_default();
    let network = match (how, &model.network) {
        (Smaller::Layers(layers), Network::Bert(bert)) => {
            keep_layers(&mut config, layers, bert.n_layers())?;
            Network::Bert(bert.with_layers(layers))
        }
        (Smaller::Layers(layers), Network::Llama(llama)) => {
            keep_layers(&mut config, layers, llama.n_layers())?;
            Network::Llama(llama.with_layers(layers))
        }
        (Smaller::Sizes(sizes), Network::Llama(llama)) => {
            if sizes.contains_key("num_hidden_layers") {
                // It has one entry a layer, and is the same without.
                config.remove(LAYER_TYPES);
            }
            let config = with_sizes(&mut config, sizes, None::<LlamaConfig>, LlamaConfig::validate)?;
            Network::Llama(llama.with_biases(config).init(device))
        }
        (Smaller::Sizes(sizes), Network::Bert(_)) => {
            let config = with_sizes(&mut config, sizes, None::<BertConfig>, BertConfig::validate)?;
            Network::Bert(config.init(device))
        }
        (Smaller::Sizes(sizes), Network::DigitsCnn(_)) => {
            let usual = Some(DigitsCnnConfig::default());
            let config = with_sizes(&mut config, sizes, usual, DigitsCnnConfig::validate)?;
            Network::DigitsCnn(config.init(device))
        }
        _ => {
            let message = format!("{} has no smaller kind here; expected \"self\", or another model", model.arch);
            return Err(Error::config(message).at("student"));
        }
    };
    let json = serde_json::to_vec_pretty(&config).map_err(|error| Error::bug(format!("config.json: {error}")))?;
    // A lazy parameter takes its values when it is first seen; a clone sees all of them, in order, now.
    Ok((LoadedModel { network: network.clone(), ..model.clone() }, json))
}

/// `config` of these of its layers, where there are `n` of them.
fn keep_layers(config: &mut Map<String, Value>, layers: &[usize], n: usize) -> Result<()> {
    if let Some(layer) = layers.iter().find(|&&layer| layer >= n) {
        let message = format!("found layer {layer}, expected 0 to {}", n.saturating_sub(1));
        return Err(Error::config(message).at("layers"));
    }
    config.insert("num_hidden_layers".into(), layers.len().into());
    if let Some(Value::Array(types)) = config.get_mut(LAYER_TYPES) {
        *types = layers.iter().filter_map(|&layer| types.get(layer).cloned()).collect();
    }
    Ok(())
}

/// `config` with other sizes put in, and what it says then.
fn with_sizes<C: Serialize + DeserializeOwned>(
    config: &mut Map<String, Value>,
    sizes: &Map<String, Value>,
    usual: Option<C>,
    check: impl Fn(&C) -> Result<(), String>,
) -> Result<C> {
    let bad = |message: String| Error::config(message).at("student");
    if let Some(Value::Object(usual)) = usual.and_then(|usual| serde_json::to_value(usual).ok()) {
        for (key, value) in usual {
            config.entry(key).or_insert(value);
        }
    }
    for (key, value) in sizes {
        let Some(teacher) = config.get(key) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
            return Err(bad(format!("unknown size {key:?}, expected one of {}", known.join(", "))));
        };
        if SHARED.contains(&key.as_str()) && teacher != value {
            let message = format!("{key}: the student has {value} and the teacher {teacher}; they must be the same");
            return Err(bad(message));
        }
        config.insert(key.clone(), value.clone());
    }
    let found: C = serde_json::from_value(Value::Object(config.clone())).map_err(|error| bad(error.to_string()))?;
    check(&found).map_err(bad)?;
    Ok(found)
}
