//! JSON from files we do not trust: no key may come twice, and every error names the file.

use briquette_core::{Error, Result};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::path::Path;

/// An object whose keys, after unescaping, are all different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unique<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object without repeated keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if found.contains_key(&key) {
                        return Err(serde::de::Error::custom(format!("key {key:?} comes twice")));
                    }
                    found.insert(key, map.next_value()?);
                }
                Ok(UniqueMap(found))
            }
        }
        deserializer.deserialize_map(Unique(std::marker::PhantomData))
    }
}

/// Parses a whole JSON document.
///
/// # Errors
/// Input, naming `what` and `path`, where it is not valid or not of this shape.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str, path: &Path) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|source| {
        Error::input(format!("{what} is not valid: {source}; the file is damaged or not what its name says"))
            .at(path.display())
    })
}
