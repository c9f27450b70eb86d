//! `config.json`: copied from the original model, with its entries about quantization and type updated.

use crate::{Checkpoint, json, limits, quantization};
use briquette_core::{DType, Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::path::Path;

/// The name of the file.
pub use crate::io::model_dir::CONFIG as FILE_NAME;

/// The key for the type of the weights, in newer and older versions of transformers.
const DTYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// The key for the width of the activations between layers, by family.
const WIDTH_KEYS: [&str; 4] = ["hidden_size", "d_model", "n_embd", "dim"];

/// The keys of an object in their order, with the original text of each value.
struct OrderedObject(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for OrderedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = OrderedObject;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedObject, A::Error> {
                let (mut pairs, mut keys) = (Vec::new(), BTreeSet::new());
                while let Some((key, value)) = map.next_entry::<String, _>()? {
                    if !keys.insert(key.clone()) {
                        return Err(serde::de::Error::custom(format!("key {key:?} occurs twice")));
                    }
                    if keys.len() > limits::MAX_CONFIG_KEYS {
                        return Err(serde::de::Error::custom(format!(
                            "found more than {} keys",
                            limits::MAX_CONFIG_KEYS
                        )));
                    }
                    pairs.push((key, value));
                }
                Ok(OrderedObject(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The text of a string in the place of a number that JSON does not have, while a file is rewritten.
fn stand_in(number: &str) -> String {
    format!("\"briquette number {number}\"")
}

/// Parses the file, with stand-ins for numbers that JSON lacks. [`to_text`] writes these numbers again.
fn ordered(bytes: &[u8], path: &Path) -> Result<OrderedObject> {
    let plain = json::with_python_numbers(bytes, stand_in);
    json::parse(plain.as_deref().unwrap_or(bytes), "the configuration", path)
}

/// Reads the `config.json` of a model directory; `None` if there is none.
///
/// # Errors
/// See [`ModelDir::read`](crate::ModelDir::read).
pub fn read(checkpoint: &Checkpoint) -> Result<Option<Vec<u8>>> {
    if !checkpoint.companions().iter().any(|path| path == Path::new(FILE_NAME)) {
        return Ok(None);
    }
    checkpoint.model_dir().read(Path::new(FILE_NAME), limits::MAX_SMALL_BYTES)
}

/// The family of a model, from the files beside its tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFamily {
    /// Every `model_type`: that of the model, then those of its parts.
    pub model_types: Vec<String>,
    /// Every hidden size.
    pub hidden_sizes: Vec<usize>,
    /// Layers that are transposed convolutions according to the classes in a TorchScript file.
    pub transposed_layers: BTreeSet<String>,
}

impl ModelFamily {
    /// Reads `config.json` and the classes of layers. If they are missing or have no such keys, the result is
    /// empty.
    ///
    /// # Errors
    /// See [`read`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let bytes = read(checkpoint)?.unwrap_or_default();
        let transposed_layers = checkpoint.transposed_layers().iter().cloned().collect();
        Ok(Self { transposed_layers, ..Self::read(&json::parsed(&bytes).unwrap_or_default()) })
    }

    /// Reads a configuration and its nested objects, one level deep. A model of text and images has one for
    /// each part.
    pub fn read(config: &serde_json::Value) -> Self {
        let mut found = Self::default();
        let parts = config.as_object().into_iter().flat_map(|object| object.values()).filter(|value| value.is_object());
        for part in std::iter::once(config).chain(parts) {
            found.model_types.extend(part.get("model_type").and_then(|name| name.as_str()).map(str::to_string));
            let size = |key: &&str| part.get(*key).and_then(serde_json::Value::as_u64);
            found.hidden_sizes.extend(WIDTH_KEYS.iter().find_map(size).and_then(|size| usize::try_from(size).ok()));
        }
        found
    }
}

/// Returns the file with `quantization_config` replaced or removed.
///
/// Other keys keep their order and text. A file that needs no change keeps every byte. `None` if there is
/// nothing to write.
///
/// # Errors
/// Input: the original must change and is not a JSON object.
pub fn with_quantization(
    original: Option<Vec<u8>>,
    quantization: Option<&serde_json::Value>,
    directory: &Path,
) -> Result<Option<Vec<u8>>> {
    let path = directory.join(FILE_NAME);
    let pairs = match &original {
        Some(bytes) => match ordered(bytes, &path) {
            Ok(pairs) => pairs.0,
            Err(_) if quantization.is_none() && !names_old_keys(bytes) => return Ok(original),
            Err(error) => return Err(error),
        },
        None => Vec::new(),
    };
    let is_old = |key: &str| key == quantization::KEY || key == quantization::OLD_KEY;
    if quantization.is_none() && !pairs.iter().any(|(key, _)| is_old(key)) {
        return Ok(original);
    }
    let kept = pairs.iter().filter(|(key, _)| !is_old(key)).map(|(key, value)| (key.as_str(), value.get().to_string()));
    let mut lines: Vec<(&str, String)> = kept.collect();
    if let Some(value) = quantization {
        lines.push((quantization::KEY, format!("{value:#}").replace('\n', "\n  ")));
    }
    to_text(&lines).map(Some)
}

/// Returns the file with a new type of the weights, if it has a type. Otherwise other programs would widen the
/// weights.
///
/// A file that is not a JSON object has no type, and stays unchanged.
///
/// # Errors
/// Bug: the result cannot be written as JSON.
pub fn with_dtype(original: Option<Vec<u8>>, dtype: DType) -> Result<Option<Vec<u8>>> {
    let torch = match dtype {
        DType::F16 => "\"float16\"",
        DType::BF16 => "\"bfloat16\"",
        DType::F32 => "\"float32\"",
        _ => return Ok(original),
    };
    let Some(Ok(OrderedObject(pairs))) = original.as_deref().map(|bytes| ordered(bytes, Path::new(FILE_NAME))) else {
        return Ok(original);
    };
    let is_other_dtype = |(key, value): &(String, Box<RawValue>)| {
        DTYPE_KEYS.contains(&key.as_str()) && value.get().starts_with('"') && value.get() != torch
    };
    if !pairs.iter().any(is_other_dtype) {
        return Ok(original);
    }
    let line =
        |pair: &(String, Box<RawValue>)| if is_other_dtype(pair) { torch.into() } else { pair.1.get().to_string() };
    let lines: Vec<(&str, String)> = pairs.iter().map(|pair| (pair.0.as_str(), line(pair))).collect();
    to_text(&lines).map(Some)
}

/// Returns the file with other values for some keys. New keys come last.
///
/// Other keys keep their order and text. Without changes, the file keeps every byte.
///
/// # Errors
/// Input: the original is not a JSON object.
pub fn with_values(original: &[u8], changes: &[(String, serde_json::Value)], directory: &Path) -> Result<Vec<u8>> {
    if changes.is_empty() {
        return Ok(original.to_vec());
    }
    let pairs = ordered(original, &directory.join(FILE_NAME))?;
    let text = |value: &serde_json::Value| format!("{value:#}").replace('\n', "\n  ");
    let line = |(key, value): &(String, Box<RawValue>)| {
        let changed = changes.iter().find(|(name, _)| name == key);
        changed.map_or_else(|| value.get().to_string(), |(_, value)| text(value))
    };
    let mut lines: Vec<(&str, String)> = pairs.0.iter().map(|pair| (pair.0.as_str(), line(pair))).collect();
    let is_new = |(key, _): &&(String, serde_json::Value)| !pairs.0.iter().any(|(known, _)| known == key);
    lines.extend(changes.iter().filter(is_new).map(|(key, value)| (key.as_str(), text(value))));
    to_text(&lines)
}

fn to_text(lines: &[(&str, String)]) -> Result<Vec<u8>> {
    let line = |(key, value): &(&str, String)| Ok(format!("  {}: {value}", serde_json::to_string(key)?));
    let lines: serde_json::Result<Vec<String>> = lines.iter().map(line).collect();
    let lines = lines.map_err(|source| Error::bug(format!("the configuration: {source}")))?;
    let mut text = if lines.is_empty() { "{}\n".into() } else { format!("{{\n{}\n}}\n", lines.join(",\n")) };
    for number in json::PYTHON_NUMBERS {
        text = text.replace(&stand_in(number), number);
    }
    Ok(text.into_bytes())
}

/// Returns whether invalid JSON may contain a key of quantization.
fn names_old_keys(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains(quantization::KEY) || text.contains(quantization::OLD_KEY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_values_keep_the_order_of_keys() {
        let change = |key: &str, value: u64| (key.to_string(), json!(value));
        let text = b"{\"b\": 1e3, \"a\": [1,2]}";
        let found = with_values(text, &[change("a", 3), change("new", 4)], Path::new("m")).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), "{\n  \"b\": 1e3,\n  \"a\": 3,\n  \"new\": 4\n}\n");
        assert_eq!(with_values(text, &[], Path::new("m")).unwrap(), text);
        let found =
            with_values(b"{\"a\": [0.0, Infinity], \"b\": -Infinity}", &[change("c", 1)], Path::new("m")).unwrap();
        let expected = "{\n  \"a\": [0.0, Infinity],\n  \"b\": -Infinity,\n  \"c\": 1\n}\n";
        assert_eq!(String::from_utf8(found).unwrap(), expected);
        assert!(with_values(b"[]", &[change("a", 3)], Path::new("m")).is_err());
    }

    fn changed(original: &str, quantization: Option<serde_json::Value>) -> String {
        let found = with_quantization(Some(original.into()), quantization.as_ref(), Path::new("d")).unwrap();
        String::from_utf8(found.unwrap()).unwrap()
    }

    #[test]
    fn other_keys_keep_their_order_and_their_text() {
        let original = "{\n  \"z\": 1e-12,\n  \"a\": [\n    1.0\n  ]\n}\n";
        let expected =
            "{\n  \"z\": 1e-12,\n  \"a\": [\n    1.0\n  ],\n  \"quantization_config\": {\n    \"k\": 1\n  }\n}\n";
        assert_eq!(changed(original, Some(json!({ "k": 1 }))), expected);
        assert_eq!(changed(expected, None), original);
        assert_eq!(changed(expected, Some(json!({ "k": 1 }))), expected);
        assert_eq!(changed("{\"quantization_config\": {}}", None), "{}\n");
    }

    #[test]
    fn the_dtype_is_only_changed_if_present() {
        let with = |text: &str| String::from_utf8(with_dtype(Some(text.into()), DType::F16).unwrap().unwrap()).unwrap();
        assert_eq!(
            with("{\"torch_dtype\": \"float32\", \"a\": 1}"),
            "{\n  \"torch_dtype\": \"float16\",\n  \"a\": 1\n}\n"
        );
        for text in ["{ \"a\" :1}", "no json", "{ \"dtype\": \"float16\"}", "{\"dtype\" :null}"] {
            assert_eq!(with(text), text);
        }
    }

    #[test]
    fn a_family_has_the_types_of_the_model_and_its_parts() {
        let config =
            json!({"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2", "n_embd": 8}, "x": [1]});
        let found = ModelFamily::read(&config);
        assert_eq!((found.model_types.len(), found.model_types[1].as_str(), found.hidden_sizes), (2, "gpt2", vec![8]));
        assert_eq!(ModelFamily::read(&json!([{"model_type": "gpt2"}])), ModelFamily::default());
        assert_eq!(ModelFamily::read(&json!({"model_type": 3, "hidden_size": -1})), ModelFamily::default());
    }

    #[test]
    fn an_unchanged_file_keeps_every_byte() {
        for text in ["{ \"a\" :1}", "no json"] {
            assert_eq!(changed(text, None), text);
        }
        assert_eq!(with_quantization(None, None, Path::new("d")).unwrap(), None);
        assert!(with_quantization(Some("no json".into()), Some(&json!({})), Path::new("d")).is_err());
    }
}
