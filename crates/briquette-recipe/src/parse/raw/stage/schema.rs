//! The JSON Schema of a stage, merged from those of all kinds, and the keys of each kind.

use super::{RawStage, StageKeys, WithKeys, with_keys};
use crate::parse::kind::StageKind;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Collects the schema properties of a kind's keys.
struct Properties<'a>(&'a mut SchemaGenerator);

impl WithKeys for Properties<'_> {
    type Output = Map<String, Value>;

    fn with<T: JsonSchema>(self, _: fn(T) -> StageKeys) -> Self::Output {
        let mut schema = T::json_schema(self.0);
        match schema.remove("properties") {
            Some(Value::Object(properties)) => properties,
            _ => Map::new(),
        }
    }
}

/// Returns the keys of a kind, each with its schema.
pub(super) fn properties_of(kind: StageKind, generator: &mut SchemaGenerator) -> Map<String, Value> {
    with_keys(kind, Properties(generator))
}

impl JsonSchema for RawStage {
    fn schema_name() -> Cow<'static, str> {
        "RawStage".into()
    }

    /// Returns one table with the keys of all kinds, so that editors describe every key.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let names =
            "\"shrink\", \"fold\", \"factorize\", \"prune\", \"distill\", \"quantize\", \"cast\" or \"evaluate\".";
        let kind = json!({ "type": "string", "description": names });
        let mut all = Map::from_iter([("kind".to_string(), kind)]);
        for kind in StageKind::ALL {
            for (key, schema) in properties_of(kind, generator) {
                let Some(known) = all.get_mut(&key) else {
                    all.insert(key, schema);
                    continue;
                };
                // A key with different meanings gets the descriptions of all its kinds.
                let [before, more] =
                    [&*known, &schema].map(|schema| schema["description"].as_str().unwrap_or_default());
                if before != more {
                    known["description"] = format!("{before} {more}").into();
                }
            }
        }
        let schema = json!({
            "description": "One stage. Which keys it may have depends on its kind.",
            "type": "object",
            "properties": all,
            "additionalProperties": false,
            "required": ["kind"],
        });
        schema.try_into().unwrap_or_default()
    }
}
