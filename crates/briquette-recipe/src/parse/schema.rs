//! JSON Schemas for editors, derived from the raw structs, with the range of every number.

use crate::parse::ranges::{self, NumberRange};
use crate::parse::raw::RawRecipe;
use serde_json::Value;

/// Returns the JSON Schema of a recipe.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(RawRecipe).to_value();
    bound_numbers(&mut schema);
    schema
}

/// Adds the range of every number to a schema that contains recipes.
pub(crate) fn bound_numbers(schema: &mut Value) {
    let mut found = Vec::new();
    collect(schema, "", "", &mut found);
    for (pointer, range) in found {
        let Some(node) = schema.pointer_mut(&pointer) else { continue };
        if !node.is_object() {
            *node = Value::Object(serde_json::Map::new());
        }
        let names = [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]];
        for ((names, bound), is_open) in names.iter().zip([range.least, range.most]).zip(range.is_open) {
            names.iter().for_each(|name| _ = node.as_object_mut().and_then(|node| node.remove(*name)));
            node[names[usize::from(is_open)]] = Value::Number(range.bound(bound));
        }
    }
}

/// Collects the schema nodes of numbers that have a range, by the path of their key.
fn collect(schema: &Value, pointer: &str, path: &str, found: &mut Vec<(String, NumberRange)>) {
    let Some(node) = schema.pointer(pointer) else { return };
    if let Some(other) = node.get("$ref").and_then(Value::as_str) {
        return collect(schema, other.trim_start_matches('#'), path, found);
    }
    let is_any = node.as_bool() == Some(true);
    if let Some(range) = ranges::of(path).filter(|_| is_any || is_number(node)) {
        found.push((pointer.to_string(), range));
    }
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    for key in node.get("properties").and_then(Value::as_object).into_iter().flat_map(|table| table.keys()) {
        collect(schema, &format!("{pointer}/properties/{key}"), &below(key), found);
    }
    for (key, path) in [("items", path.to_string()), ("additionalProperties", below("*"))] {
        collect(schema, &format!("{pointer}/{key}"), &path, found);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let n = node.get(key).and_then(Value::as_array).map_or(0, Vec::len);
        (0..n).for_each(|place| collect(schema, &format!("{pointer}/{key}/{place}"), path, found));
    }
}

/// Returns whether a schema node describes a number.
fn is_number(node: &Value) -> bool {
    let is = |kind: &Value| kind == "number" || kind == "integer";
    match &node["type"] {
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_has_a_number_in_the_schema() {
        // Before bounds are added.
        let schema = schemars::schema_for!(RawRecipe).to_value();
        let mut found = Vec::new();
        collect(&schema, "", "", &mut found);
        // One definition of layers serves two keys.
        let mut pointers: Vec<&String> = found.iter().map(|(pointer, _)| pointer).collect();
        pointers.sort_unstable();
        pointers.dedup();
        assert_eq!((found.len(), pointers.len()), (ranges::KEYS.len(), ranges::KEYS.len() - 1));
    }
}
