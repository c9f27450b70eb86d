//! Deserializes a stage.
//!
//! The key `kind` may come last, so the struct of the other keys is unknown at first. But an error has its line
//! only while its value is read. Each key is therefore parsed at once, with the struct of any kind that has it.
//! A key has the same type in all kinds. The values are kept as JSON and finally deserialized as the struct of
//! the stage's kind.

use super::schema::properties_of;
use super::{RawStage, StageKeys, WithKeys, with_keys};
use crate::parse::kind::StageKind;
use schemars::SchemaGenerator;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::LazyLock;

/// The kinds that have each key.
static KINDS_OF_KEYS: LazyLock<BTreeMap<String, Vec<StageKind>>> = LazyLock::new(|| {
    let mut kinds: BTreeMap<String, Vec<StageKind>> = BTreeMap::new();
    for kind in StageKind::ALL {
        let properties = properties_of(kind, &mut SchemaGenerator::default());
        properties.into_iter().for_each(|(key, _)| kinds.entry(key).or_default().push(kind));
    }
    kinds
});

/// The keys of all kinds.
static KEYS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| std::iter::once("kind").chain(KINDS_OF_KEYS.keys().map(String::as_str)).collect());

/// The keys of each kind.
static KEYS_OF_KINDS: LazyLock<BTreeMap<&'static str, Vec<&'static str>>> = LazyLock::new(|| {
    let own = |kind| KINDS_OF_KEYS.iter().filter(move |(_, kinds)| kinds.contains(&kind)).map(|(key, _)| key.as_str());
    StageKind::ALL.into_iter().map(|kind| (kind.name(), std::iter::once("kind").chain(own(kind)).collect())).collect()
});

/// Returns the keys of a kind.
pub(crate) fn keys_of(kind: StageKind) -> &'static Vec<&'static str> {
    KEYS_OF_KINDS.get(kind.name()).unwrap_or(&KEYS)
}

fn kind_named(name: &str) -> Option<StageKind> {
    StageKind::ALL.into_iter().find(|kind| kind.name() == name)
}

impl<'de> Deserialize<'de> for RawStage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StageTable;
        impl<'de> Visitor<'de> for StageTable {
            type Value = RawStage;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("struct RawStage")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawStage, A::Error> {
                let (mut kind, mut given): (Option<String>, _) = (None, Map::new());
                while let Some(key) = map.next_key_seed(StageKey(kind.as_deref().and_then(kind_named)))? {
                    if given.contains_key(key) || key == "kind" && kind.is_some() {
                        return Err(A::Error::duplicate_field(key));
                    }
                    if key == "kind" {
                        kind = Some(map.next_value()?);
                    } else if let Some(value) = map.next_value_seed(ValueOf { key })? {
                        given.insert(key.into(), value);
                    }
                }
                let kind = kind.ok_or_else(|| A::Error::missing_field("kind"))?;
                RawStage::of(&kind, given).map_err(A::Error::custom)
            }
        }
        deserializer.deserialize_struct("RawStage", &KEYS, StageTable)
    }
}

/// Parses a key of any kind. If the kind is already known, an error lists only its keys.
struct StageKey(Option<StageKind>);

impl<'de> DeserializeSeed<'de> for StageKey {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for StageKey {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key of a stage")
    }

    fn visit_str<E: serde::de::Error>(self, found: &str) -> Result<&'static str, E> {
        let known = self.0.map_or(&*KEYS, keys_of);
        KEYS.iter().find(|key| **key == found).copied().ok_or_else(|| E::unknown_field(found, known))
    }
}

/// Parses the value of a key with the struct of the first kind that has it. Default values become `None`.
struct ValueOf {
    key: &'static str,
}

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Option<Value>, D::Error> {
        struct Read<'de, D>(Alone<D>, PhantomData<&'de ()>);
        impl<'de, D: Deserializer<'de>> WithKeys for Read<'de, D> {
            type Output = Result<StageKeys, D::Error>;

            fn with<T: DeserializeOwned>(self, wrap: fn(T) -> StageKeys) -> Self::Output {
                T::deserialize(MapAccessDeserializer::new(self.0)).map(wrap)
            }
        }
        let kinds = KINDS_OF_KEYS.get(self.key).and_then(|kinds| kinds.first());
        let kind = kinds.ok_or_else(|| D::Error::unknown_field(self.key, &KEYS))?;
        let keys = with_keys(*kind, Read(Alone { key: Some(self.key), value: Some(value) }, PhantomData))?;
        let mut tree = serde_json::to_value(keys).map_err(D::Error::custom)?;
        let found = tree.as_object_mut().and_then(|table| table.remove(self.key));
        match found {
            Some(value) if has_null(&value) => Err(D::Error::custom("found no finite number")),
            found => Ok(found),
        }
    }
}

/// Returns whether a value contains null, the JSON form of NaN and infinity.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(table) => table.values().any(has_null),
        _ => false,
    }
}

/// A table with one key, as input for a struct.
struct Alone<D> {
    key: Option<&'static str>,
    value: Option<D>,
}

impl<'de, D: Deserializer<'de>> MapAccess<'de> for Alone<D> {
    type Error = D::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, D::Error> {
        self.key.take().map(|key| seed.deserialize(StrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, D::Error> {
        let value = self.value.take().ok_or_else(|| D::Error::custom("there is one value only"))?;
        seed.deserialize(value)
    }
}

impl RawStage {
    /// Creates a stage of this kind. Keys that the kind does not have are kept separately.
    fn of(kind: &str, given: Map<String, Value>) -> serde_json::Result<Self> {
        struct Read(Map<String, Value>);
        impl WithKeys for Read {
            type Output = serde_json::Result<StageKeys>;

            fn with<T: DeserializeOwned>(self, wrap: fn(T) -> StageKeys) -> Self::Output {
                serde_json::from_value(Value::Object(self.0)).map(wrap)
            }
        }
        let Some(kind) = kind_named(kind) else {
            return Ok(Self { keys: StageKeys::Unknown(kind.to_string()), foreign: given });
        };
        let is_own = |key: &str| KINDS_OF_KEYS.get(key).is_some_and(|kinds| kinds.contains(&kind));
        let (own, foreign) = given.into_iter().partition(|(key, _)| is_own(key));
        Ok(Self { keys: with_keys(kind, Read(own))?, foreign })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json, to_value};

    #[test]
    fn keys_of_other_kinds_are_kept_and_reported() {
        let written = json!({ "kind": "prune", "sparsity": 0.5, "seed": 1, "bits": 4, "teacher": "t" });
        let stage: RawStage = from_value(written.clone()).unwrap();
        assert_eq!((stage.kind(), stage.foreign_key()), (Some(StageKind::Prune), Some("bits")));
        assert_eq!(to_value(&stage).unwrap(), written);
        let unknown: RawStage = from_value(json!({ "kind": "prnue", "sparsity": 0.5 })).unwrap();
        assert_eq!((unknown.kind(), unknown.kind_name()), (None, "prnue"));
    }

    #[test]
    fn a_key_is_read_before_the_kind_is_known() {
        let read = toml::from_str::<RawStage>;
        assert_eq!(read("sparsity = 0.5\nkind = \"prune\""), read("kind = \"prune\"\nsparsity = 0.5"));
        for (text, expected) in [
            ("bits = 300\nkind = \"prune\"", "invalid value"),
            ("spasity = 0.5\nkind = \"prune\"", "unknown field `spasity`"),
            ("sparsity = 0.5", "missing field `kind`"),
            ("kind = \"distill\"\nclip = nan", "found no finite number"),
            ("kind = \"distill\"\nprune = { sparsity = nan }", "found no finite number"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn every_kind_round_trips() {
        for kind in StageKind::ALL {
            let stage: RawStage = from_value(json!({ "kind": kind.name() })).unwrap();
            assert_eq!((stage.kind(), to_value(&stage).unwrap()), (Some(kind), json!({ "kind": kind.name() })));
        }
    }

    #[test]
    fn a_key_has_one_type_in_all_kinds() {
        let mut known: BTreeMap<String, Value> = BTreeMap::new();
        for kind in StageKind::ALL {
            for (key, mut schema) in properties_of(kind, &mut SchemaGenerator::default()) {
                schema["description"].take();
                assert_eq!(*known.entry(key.clone()).or_insert(schema.clone()), schema, "{key} of {kind}");
            }
        }
    }
}
