//! Keys of a `config.json`, with errors that name the key.

use briquette_core::{Error, Result};
use briquette_formats::json;
use serde_json::Value;

/// A model's `config.json`. It gives settings; sizes are compared with the headers.
#[derive(Debug, Clone, Default)]
pub struct Config(Value);

const FILE: &str = "config.json";

impl Config {
    /// Parses the file; an absent file has no keys.
    ///
    /// # Errors
    /// Input: the file is no JSON object.
    pub fn parse(bytes: Option<&[u8]>) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self(Value::Null)) };
        let value: Value =
            json::parsed(bytes).map_err(|error| Error::input(format!("is no JSON: {error}")).at(FILE))?;
        match value.is_object() {
            true => Ok(Self(value)),
            false => Err(Error::input("is no JSON object").at(FILE)),
        }
    }

    /// The `model_type`.
    pub fn model_type(&self) -> Option<&str> {
        self.text("model_type")
    }

    /// A string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// The class that saved the model, such as `GPT2LMHeadModel`.
    pub fn architecture(&self) -> Option<&str> {
        self.0.get("architectures")?.get(0)?.as_str()
    }

    /// A truth value; none where it is absent or something else.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    /// The number of entries of an object; none where it is absent or something else.
    pub fn n_entries(&self, key: &str) -> Option<usize> {
        self.0.get(key)?.as_object().map(serde_json::Map::len)
    }

    /// The names of classes in `id2label`, in the order of their numbers; empty unless the numbers are 0, 1, 2, …
    pub fn class_names(&self) -> Vec<String> {
        let Some(names) = self.0.get("id2label").and_then(Value::as_object) else { return Vec::new() };
        let name = |class: usize| names.get(&class.to_string())?.as_str().map(str::to_string);
        (0..names.len()).map(name).collect::<Option<_>>().unwrap_or_default()
    }

    /// The numbers of a list; none where it is absent or holds something else.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.0.get(key)?.as_array()?.iter().map(Value::as_f64).collect()
    }

    /// Adds the keys of another file where they are absent.
    #[must_use]
    pub fn with_usual(mut self, usual: &Self) -> Self {
        if let (Some(own), Some(usual)) = (self.0.as_object_mut(), usual.0.as_object()) {
            for (key, value) in usual {
                own.entry(key.as_str()).or_insert_with(|| value.clone());
            }
        }
        self
    }

    /// A list; none where it is absent or something else.
    pub fn list(&self, key: &str) -> Option<&[Value]> {
        self.0.get(key)?.as_array().map(Vec::as_slice)
    }

    /// Returns the file with other values for some keys.
    #[must_use]
    pub fn with_values(&self, changes: &[(String, Value)]) -> Self {
        let mut keys = self.0.as_object().cloned().unwrap_or_default();
        keys.extend(changes.iter().cloned());
        Self(if keys.is_empty() { self.0.clone() } else { Value::Object(keys) })
    }

    /// The string at an index of a list.
    pub fn text_at(&self, key: &str, index: usize) -> Option<&str> {
        self.0.get(key)?.get(index)?.as_str()
    }

    /// The number at an index of a list.
    pub fn number_at(&self, key: &str, index: usize) -> Option<f64> {
        self.0.get(key)?.get(index)?.as_f64()
    }

    /// An object within the file.
    pub fn object(&self, key: &str) -> Option<Self> {
        self.0.get(key).filter(|value| value.is_object()).cloned().map(Self)
    }

    /// A size; none where it is absent or null.
    ///
    /// # Errors
    /// Input: it is not a whole number from 1 to 2³¹.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().filter(|n| (1..=1 << 31).contains(n)) {
                Some(n) => Ok(Some(n as usize)),
                None => Err(Error::input(format!("{key}: found {value}, expected 1 to 2147483648")).at(FILE)),
            },
        }
    }

    /// Two sizes; none where they are absent.
    ///
    /// # Errors
    /// Input: there are not two whole numbers from 1 to 65,536.
    pub fn pair(&self, key: &str) -> Result<Option<[usize; 2]>> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let size = |value: &Value| value.as_u64().filter(|n| (1..=1 << 16).contains(n)).map(|n| n as usize);
        match value.as_array().map(|pair| pair.iter().map(size).collect::<Option<Vec<usize>>>()) {
            Some(Some(pair)) if pair.len() == 2 => Ok(Some([pair[0], pair[1]])),
            _ => Err(Error::input(format!("{key}: found {value}, expected two sizes up to 65536")).at(FILE)),
        }
    }

    /// A size that must be there.
    ///
    /// # Errors
    /// Input: it is absent, or see [`size`](Self::size).
    pub fn needed(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| Error::input(format!("{key} is missing; add it")).at(FILE))
    }

    /// A number of layers that must be there.
    ///
    /// # Errors
    /// Input: it is absent, or not a whole number from 1 to 65,536.
    pub fn layers(&self, key: &str) -> Result<usize> {
        let found = self.needed(key)?;
        match found {
            1..=65_536 => Ok(found),
            _ => Err(Error::input(format!("{key}: found {found}, expected 1 to 65536")).at(FILE)),
        }
    }

    /// Compares a size with the checkpoint. An absent size agrees.
    ///
    /// # Errors
    /// Input: the sizes differ.
    pub fn check(&self, key: &str, found: usize, tensor: &str) -> Result<()> {
        match self.size(key)? {
            Some(said) if said != found => {
                let message = format!("{key} is {said}, but {tensor} has {found}; correct it");
                Err(Error::input(message).at(FILE))
            }
            _ => Ok(()),
        }
    }
}
