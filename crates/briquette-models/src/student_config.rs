//! The config.json of a smaller network: of some of the layers, or of other sizes.

use briquette_core::{Error, Result};
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
pub(crate) const LAYER_TYPES: &str = "layer_types";

/// How a network is smaller.
#[derive(Debug, Clone, PartialEq)]
pub enum Smaller {
    /// These of its layers, with their weights.
    Layers(Vec<usize>),
    /// Other values in its config.json, with random weights.
    Sizes(Map<String, Value>),
}

/// `config` of these of its layers, where there are `n` of them.
pub(crate) fn keep_layers(config: &mut Map<String, Value>, layers: &[usize], n: usize) -> Result<()> {
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
pub(crate) fn with_sizes<C: Serialize + DeserializeOwned>(
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
