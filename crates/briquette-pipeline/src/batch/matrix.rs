//! Every combination of lists of values, and the names that tell them apart.

use briquette_core::pattern::nearest;
use briquette_core::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most jobs that one matrix makes.
const MAX_POINTS: usize = 100_000;

/// One combination: a dotted path and its value for each axis.
pub(super) type Point = Vec<(String, Value)>;

/// Every combination; axes in the order of their names, the last varies fastest.
///
/// # Errors
/// Config, where an axis is no list, an empty one, or there are too many.
pub(super) fn points(matrix: &BTreeMap<String, Value>) -> Result<Vec<Point>> {
    let mut points = vec![Point::new()];
    for (axis, values) in super::overrides::flatten(matrix) {
        let values = values.as_array().filter(|values| !values.is_empty()).ok_or_else(|| {
            Error::config(format!("found {values}, expected a list of values, such as [0.2, 0.4]")).at(&axis)
        })?;
        let n = points.len().saturating_mul(values.len());
        if n > MAX_POINTS {
            return Err(Error::config(format!(
                "found {n} combinations, expected at most {MAX_POINTS}; split the file"
            )));
        }
        let extend = |point: &Point, value: &Value| [point.as_slice(), &[(axis.clone(), value.clone())]].concat();
        points = points.iter().flat_map(|point| values.iter().map(move |value| extend(point, value))).collect();
    }
    Ok(points)
}

/// Fills in `{axis}` with that axis's value, in letters that a file name can have.
///
/// # Errors
/// Config, where there is no such axis.
pub(super) fn fill(template: &str, point: &Point) -> Result<String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (axis, after) = after.split_once('}').ok_or_else(|| {
            Error::config(format!("found {template:?}, expected a closing brace after the name of an axis"))
        })?;
        let value = point.iter().find(|(name, _)| name == axis).map(|(_, value)| value);
        let value = value.ok_or_else(|| unknown_axis(axis, point))?;
        filled.push_str(before);
        filled.push_str(&word(value));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn unknown_axis(axis: &str, point: &Point) -> Error {
    let names: Vec<&str> = point.iter().map(|(name, _)| name.as_str()).collect();
    let hint = nearest(axis, names.iter().copied()).map_or(String::new(), |name| format!("; did you mean {{{name}}}?"));
    Error::config(format!("found {{{axis}}}, expected an axis of the matrix: {}{hint}", names.join(", ")))
}

/// `../models/a` is `models-a`: a value may be any text, and a name must stay one part of a path.
fn word(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(word).collect::<Vec<_>>().join("+"),
        other => other.to_string(),
    };
    let plain = |letter: char| if letter.is_alphanumeric() || "._-+=".contains(letter) { letter } else { '-' };
    text.chars().map(plain).collect::<String>().trim_matches(['.', '-']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matrix() -> BTreeMap<String, Value> {
        BTreeMap::from([("a.0".to_string(), json!([0.2, 0.4])), ("b".into(), json!(["x", "../y z", "2:4"]))])
    }

    #[test]
    fn a_matrix_is_every_combination_and_the_last_axis_is_fastest() {
        let points = points(&matrix()).unwrap();
        let names: Vec<String> = points.iter().map(|point| fill("p{a.0}/{b}-", point).unwrap()).collect();
        assert_eq!(names, ["p0.2/x-", "p0.2/y-z-", "p0.2/2-4-", "p0.4/x-", "p0.4/y-z-", "p0.4/2-4-"]);
    }

    #[test]
    fn an_axis_is_a_list_and_a_name_is_an_axis() {
        for bad in [json!(0.2), json!([]), json!("x")] {
            let error = points(&BTreeMap::from([("a".to_string(), bad)])).unwrap_err();
            assert!(error.to_string().starts_with("a: found"), "{error}");
        }
        let many = json!((0..400).collect::<Vec<_>>());
        let axes = ["a", "b"].map(|axis| (axis.to_string(), many.clone()));
        assert!(points(&BTreeMap::from(axes)).unwrap_err().to_string().contains("160000 combinations"));
        let point = &points(&matrix()).unwrap()[0];
        assert!(fill("{a.1}", point).unwrap_err().to_string().contains("did you mean {a.0}?"));
        assert!(fill("{a.0", point).unwrap_err().to_string().contains("closing brace"));
    }
}
