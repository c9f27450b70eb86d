//! config.json of smaller networks: with some layers or other sizes.

use briquette_core::{Error, Result};
use serde_json::{Map, Value};

/// Keys that inputs and outputs depend on: a student keeps its teacher's values.
const SHARED: [&str; 7] = [
    "vocab_size",
    "num_labels",
    "image_size",
    "in_channels",
    "pixel_scale",
    "max_position_embeddings",
    "tie_word_embeddings",
];
/// Key with the attention type of each layer.
pub(crate) const LAYER_TYPES: &str = "layer_types";

/// Keys with the number of layers, of which a config.json has one.
const LAYER_COUNTS: [&str; 3] = ["num_hidden_layers", "n_layer", "n_layers"];

/// The difference between a smaller network and its teacher.
#[derive(Debug, Clone, PartialEq)]
pub enum Smaller {
    /// These layers, with their weights.
    Layers(Vec<usize>),
    /// Other values in config.json, with random weights.
    Sizes(Map<String, Value>),
}

/// Updates `config` for these layers out of `n`.
pub(crate) fn keep_layers(config: &mut Map<String, Value>, layers: &[usize], n: usize) -> Result<()> {
    if let Some(layer) = layers.iter().find(|&&layer| layer >= n) {
        let message = format!("found layer {layer}, expected 0 to {}", n.saturating_sub(1));
        return Err(Error::config(message).at("layers"));
    }
    let key = LAYER_COUNTS.into_iter().find(|key| config.contains_key(*key)).unwrap_or(LAYER_COUNTS[0]);
    config.insert(key.into(), layers.len().into());
    if let Some(Value::Array(types)) = config.get_mut(LAYER_TYPES) {
        *types = layers.iter().filter_map(|&layer| types.get(layer).cloned()).collect();
    }
    Ok(())
}

/// Updates `config` with other sizes. Keys that it lacks have the values of `usual`.
pub(crate) fn with_sizes(config: &mut Map<String, Value>, sizes: &Map<String, Value>, usual: &str) -> Result<()> {
    let bad = |message: String| Error::config(message).at("student");
    let usual: Map<String, Value> = serde_json::from_str(usual).map_err(|error| Error::bug(error.to_string()))?;
    for (key, value) in usual {
        config.entry(key).or_insert(value);
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
    if LAYER_COUNTS.iter().any(|key| sizes.contains_key(*key)) {
        // The list has an entry per layer of the teacher. Without it, transformers derives the same types from other
        // keys.
        config.remove(LAYER_TYPES);
    }
    Ok(())
}
