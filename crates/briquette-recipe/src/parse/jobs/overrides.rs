//! Sets values of a recipe by dotted path: `stage.0.sparsity`.

use crate::parse::ranges::refusal_at;
use crate::parse::raw::RawRecipe;
use crate::parse::text::explain;
use briquette_core::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Returns dotted paths and values, sorted by path.
///
/// `{"stage": {"0": {"seed": 1}}}` and `{"stage.0.seed": 1}` give the same result.
pub(super) fn flatten(table: &BTreeMap<String, Value>) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    table.iter().for_each(|(key, value)| collect(key, value, &mut found));
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

fn collect(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(table) => table.iter().for_each(|(key, value)| collect(&format!("{path}.{key}"), value, found)),
        _ => found.push((path.to_string(), value.clone())),
    }
}

/// Returns the recipe with one value changed.
///
/// # Errors
/// Config: the recipe has no such key, or the value has the wrong type.
pub(super) fn apply(recipe: &RawRecipe, path: &str, value: Value) -> Result<RawRecipe> {
    let tree = serde_json::to_value(recipe).map_err(|error| Error::config(error.to_string()));
    let changed = tree.and_then(|mut tree| {
        put(&mut tree, path, value.clone())?;
        // The range of the key explains a number that serde refuses better than serde's message.
        let why = |error: serde_json::Error| refusal_at(path, &value).unwrap_or_else(|| explain(&error.to_string()));
        serde_json::from_value(tree).map_err(|error| Error::config(why(error)))
    });
    changed.map_err(|error| error.at(path))
}

/// Returns the recipe of a JSON tree with values changed.
///
/// # Errors
/// Config: a value is invalid; returned with its path.
pub(super) fn apply_all(tree: &Value, values: &[(&str, &Value)]) -> Result<RawRecipe, (String, Error)> {
    let whole = || -> Option<RawRecipe> {
        let mut tree = tree.clone();
        values.iter().try_for_each(|(path, value)| put(&mut tree, path, (*value).clone()).ok())?;
        serde_json::from_value(tree).ok()
    };
    if let Some(recipe) = whole() {
        return Ok(recipe);
    }
    // Applies one value at a time to find the invalid one.
    let mut recipe = serde_json::from_value(tree.clone()).map_err(|e| (String::new(), Error::bug(e.to_string())))?;
    for (path, value) in values {
        recipe = apply(&recipe, path, (*value).clone()).map_err(|error| (path.to_string(), error))?;
    }
    Ok(recipe)
}

fn put(tree: &mut Value, path: &str, value: Value) -> Result<()> {
    let mut place = tree;
    for step in path.split('.') {
        place = match place {
            Value::Object(table) => table.entry(step).or_insert_with(|| Value::Object(Map::new())),
            Value::Array(items) => {
                let n = items.len();
                let item = step.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                item.ok_or_else(|| {
                    Error::config(format!("found {step:?}, expected an index into a list of {n}, from 0"))
                })?
            }
            other => return Err(Error::config(format!("{other} has no key {step:?}; shorten the path"))),
        };
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::raw::{RawPrune, RawQuantize, StageKeys};
    use serde_json::json;

    fn recipe() -> RawRecipe {
        let stages = [StageKeys::Prune(RawPrune::default()), StageKeys::Quantize(RawQuantize::default())];
        RawRecipe { stage: stages.map(Into::into).into(), ..Default::default() }
    }

    /// Returns the sparsity of the first stage.
    fn sparsity(recipe: &RawRecipe) -> Option<f64> {
        match &recipe.stage[0].keys {
            StageKeys::Prune(keys) => keys.sparsity,
            _ => None,
        }
    }

    #[test]
    fn values_are_set_at_their_path() {
        let changed = apply(&recipe(), "stage.0.sparsity", json!(0.5)).unwrap();
        assert_eq!((sparsity(&changed), &changed.stage[1]), (Some(0.5), &recipe().stage[1]));
        let changed = apply(&recipe(), "output.path", json!("o")).unwrap();
        assert_eq!(changed.output.path.unwrap().to_str(), Some("o"));
    }

    #[test]
    fn errors_have_the_path_of_the_invalid_value() {
        let tree = serde_json::to_value(recipe()).unwrap();
        let (half, much) = (json!(0.5), json!("much"));
        let apply_all = |values: &[(&'static str, &Value)]| apply_all(&tree, values);
        assert_eq!(sparsity(&apply_all(&[("stage.0.sparsity", &half)]).unwrap()), Some(0.5));
        for bad in [("stage.0.seed", &much), ("stage.0.sede", &half), ("stage.7.seed", &half)] {
            let (path, error) = apply_all(&[("stage.0.sparsity", &half), bad]).unwrap_err();
            assert!(path == bad.0 && error.to_string().starts_with(bad.0), "{error}");
        }
    }

    #[test]
    fn errors_of_unknown_paths_have_the_position() {
        let cases = [
            ("stage.0.spasity", "did you mean \"sparsity\"?"),
            ("stge.0.sparsity", "did you mean \"stage\"?"),
            ("stage.2.sparsity", "expected an index into a list of 2"),
            ("stage.first", "expected an index into a list of 2"),
            ("stage.0.kind.x", "has no key \"x\""),
            ("stage.0.sparsity", "invalid type"),
            ("model", "invalid type"),
        ];
        for (path, expected) in cases {
            let error = apply(&recipe(), path, json!("much")).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains(expected), "{path}: {error}");
        }
    }

    #[test]
    fn errors_of_numbers_have_the_range() {
        for (path, value) in
            [("stage.0.epochs", json!(-1)), ("stage.1.bits", json!(300)), ("stage.0.loss", json!([{ "weight": -1 }]))]
        {
            let error = apply(&recipe(), path, value.clone()).unwrap_err().to_string();
            let number = if path.ends_with("bits") { "300" } else { "-1" };
            assert!(error.starts_with(path) && error.contains(&format!("found {number}, expected a ")), "{error}");
        }
    }

    #[test]
    fn quoted_and_bare_keys_are_the_same() {
        let bare = BTreeMap::from([("stage".to_string(), json!({"0": {"seed": 1}, "1": {"bits": 4}}))]);
        let quoted = BTreeMap::from([("stage.0.seed".to_string(), json!(1)), ("stage.1.bits".into(), json!(4))]);
        assert_eq!(flatten(&bare), flatten(&quoted));
    }
}
