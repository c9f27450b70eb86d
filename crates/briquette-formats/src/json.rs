//! JSON from untrusted files: no repeated keys, and every error names the file.

use crate::limits;
use briquette_core::{Error, Result};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;
use std::path::Path;

/// An object whose keys, after unescaping, are all different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Unique::new(usize::MAX))
    }
}

/// Collects an object of at most `most` keys.
struct Unique<V> {
    most: usize,
    of: PhantomData<V>,
}

impl<V> Unique<V> {
    fn new(most: usize) -> Self {
        Self { most, of: PhantomData }
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an object without repeated keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut in_order) = (BTreeMap::new(), Vec::<(String, V)>::new());
        while let Some(key) = map.next_key::<String>()? {
            let is_full = found.len().max(in_order.len()) == self.most;
            // Keys that arrive in order, like those of millions of tensors, need no lookup.
            if found.is_empty() && !is_full && in_order.last().is_none_or(|(last, _)| *last < key) {
                in_order.push((key, map.next_value()?));
                continue;
            }
            if found.is_empty() {
                found = std::mem::take(&mut in_order).into_iter().collect();
            }
            match found.entry(key) {
                Entry::Occupied(known) => {
                    return Err(serde::de::Error::custom(format!("key {:?} occurs twice", known.key())));
                }
                Entry::Vacant(_) if is_full => {
                    return Err(serde::de::Error::custom(format!("found more than {} keys", self.most)));
                }
                Entry::Vacant(place) => place.insert(map.next_value()?),
            };
        }
        Ok(UniqueMap(if found.is_empty() { in_order.into_iter().collect() } else { found }))
    }
}

/// Free-form strings, up to [`limits::MAX_METADATA`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataStrings(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for MetadataStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Unique::new(limits::MAX_METADATA)).map(|found| Self(found.0))
    }
}

/// Deserializes a value of up to [`limits::MAX_VALUE_BYTES`].
pub(crate) fn bounded_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let raw = Box::<RawValue>::deserialize(deserializer)?;
    value_of(&raw).map_err(serde::de::Error::custom)
}

/// Parses a value of up to [`limits::MAX_VALUE_BYTES`] from raw text.
pub(crate) fn value_of(raw: &RawValue) -> Result<Value, String> {
    let n = raw.get().len();
    if n > limits::MAX_VALUE_BYTES {
        return Err(format!("found a value of {n} bytes, expected at most {}", limits::MAX_VALUE_BYTES));
    }
    serde_json::from_str(raw.get()).map_err(|source| source.to_string())
}

/// Deserializes an object without repeated keys, as a plain map.
pub(crate) fn unique<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    UniqueMap::deserialize(deserializer).map(|found| found.0)
}

/// The numbers that Python writes and JSON lacks.
pub(crate) const PYTHON_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses a whole JSON document. `NaN` and infinities, as Python writes them, become null.
///
/// # Errors
/// The document is not valid JSON, or not of this type.
pub fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes).or_else(|error| match with_python_numbers(bytes, |_| "null".into()) {
        Some(plain) => serde_json::from_slice(&plain),
        None => Err(error),
    })
}

/// Returns a document with other text in place of the numbers that JSON lacks; `None` if it has none.
pub(crate) fn with_python_numbers(bytes: &[u8], instead: impl Fn(&str) -> String) -> Option<Vec<u8>> {
    let (mut found, mut at, mut in_string, mut has_any) = (Vec::new(), 0, false, false);
    while let Some(&byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        match PYTHON_NUMBERS.into_iter().find(|number| !in_string && rest.starts_with(number.as_bytes())) {
            Some(number) => {
                found.extend(instead(number).bytes());
                (at, has_any) = (at + number.len(), true);
            }
            None => {
                // A backslash escapes the byte after it.
                let n = if in_string && byte == b'\\' { 2 } else { 1 };
                in_string ^= byte == b'"';
                found.extend(rest.iter().take(n));
                at += n;
            }
        }
    }
    has_any.then_some(found)
}

/// Parses a whole JSON document. Errors name `what` and `path`.
///
/// # Errors
/// Input: the document is not valid JSON, or not of this type.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str, path: &Path) -> Result<T> {
    parsed(bytes).map_err(|source| {
        Error::input(format!("{what} is not valid: {source}; the file is damaged or has another format"))
            .at(path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_only_python_writes_are_null_outside_of_strings() {
        let text = br#"{"a": [0.0, Infinity, -Infinity, NaN], "NaN \" Infinity": "\\", "b": -Infinity}"#;
        let found: Value = parsed(text).unwrap();
        let expected = serde_json::json!({"a": [0.0, null, null, null], "NaN \" Infinity": "\\", "b": null});
        assert_eq!(found, expected);
        assert!(with_python_numbers(br#"{"a": "NaN"}"#, str::to_string).is_none());
        assert!(parsed::<Value>(b"{\"a\": Infinit}").is_err());
    }

    #[test]
    fn keys_in_any_order_are_read_and_repeated_keys_are_refused() {
        let read = |json: &str| serde_json::from_str::<UniqueMap<u8>>(json).map_err(|error| error.to_string());
        for json in
            ["{}", r#"{"a":1}"#, r#"{"a":1,"b":2,"c":3}"#, r#"{"b":1,"a":2,"c":3}"#, r#"{"a":1,"c":2,"b":3,"d":4}"#]
        {
            assert_eq!(read(json).unwrap().0, serde_json::from_str(json).unwrap(), "{json}");
        }
        for json in [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":1,"a":1}"#, r#"{"b":1,"\u0061":1,"c":1,"a":1}"#] {
            assert!(read(json).unwrap_err().contains("occurs twice"), "{json}");
        }
        assert!(read(r#"{"a":1,"b":2,"a":1,]"#).unwrap_err().starts_with("key \"a\" occurs twice at line 1 column 16"));
    }

    #[test]
    fn the_number_of_keys_is_limited() {
        let read = |json: &str| {
            serde_json::Deserializer::from_str(json)
                .deserialize_map(Unique::<u8>::new(2))
                .map_err(|error| error.to_string())
        };
        for (two, three) in
            [(r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2,"c":3}"#), (r#"{"b":1,"a":2}"#, r#"{"b":1,"a":2,"c":3}"#)]
        {
            assert_eq!(read(two).unwrap().0.len(), 2);
            assert!(read(three).unwrap_err().contains("found more than 2 keys"));
        }
        assert!(read(r#"{"a":1,"b":2,"a":3}"#).unwrap_err().contains("occurs twice"));
    }
}
