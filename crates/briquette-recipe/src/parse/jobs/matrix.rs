//! Combinations of lists of values, and the names of these combinations.
//!
//! A combination is built on demand, because there may be a hundred thousand.

use briquette_core::pattern::nearest;
use briquette_core::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Largest number of jobs of a matrix.
const MAX_POINTS: usize = 100_000;

/// A dotted path and its values.
#[derive(Debug, Clone)]
struct MatrixAxis {
    path: String,
    values: Vec<Value>,
    /// The values, in characters that are valid in file names.
    words: Vec<String>,
}

/// All combinations, in the order of the axis names. The last axis varies fastest.
#[derive(Debug, Clone)]
pub(super) struct JobMatrix {
    axes: Vec<MatrixAxis>,
}

/// One combination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point<'a> {
    matrix: &'a JobMatrix,
    index: usize,
}

impl JobMatrix {
    /// Creates the matrix.
    ///
    /// # Errors
    /// Config: an axis is not a list or is empty, or there are too many combinations.
    pub(super) fn new(axes: &BTreeMap<String, Value>) -> Result<Self> {
        let axis = |(path, values): (String, Value)| match values {
            Value::Array(values) if !values.is_empty() => {
                Ok(MatrixAxis { path, words: values.iter().map(word).collect(), values })
            }
            values => {
                let message = format!("found {values}, expected a list of values, such as [0.2, 0.4]");
                Err(Error::config(message).at(&path))
            }
        };
        let axes: Vec<MatrixAxis> = super::overrides::flatten(axes).into_iter().map(axis).collect::<Result<_>>()?;
        let n = axes.iter().fold(1, |n: usize, axis| n.saturating_mul(axis.values.len()));
        if n > MAX_POINTS {
            let message = format!("found {n} combinations, expected at most {MAX_POINTS}; split the file");
            return Err(Error::config(message));
        }
        Ok(Self { axes })
    }

    /// Returns the number of combinations.
    pub(super) fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    /// Returns the combination at an index below [`len`](Self::len).
    pub(super) fn point(&self, index: usize) -> Point<'_> {
        Point { matrix: self, index }
    }
}

impl<'a> Point<'a> {
    /// Returns each axis with the index of its value.
    fn places(self) -> impl Iterator<Item = (&'a MatrixAxis, usize)> {
        let mut n_left = self.matrix.len();
        let mut index = self.index;
        self.matrix.axes.iter().map(move |axis| {
            n_left /= axis.values.len();
            let place = index / n_left;
            index %= n_left;
            (axis, place)
        })
    }

    /// Returns the dotted path and the value of each axis.
    pub(super) fn values(self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.places().map(|(axis, place)| (axis.path.as_str(), &axis.values[place]))
    }

    /// Replaces each `{axis}` by the axis's value, in characters that are valid in file names.
    ///
    /// # Errors
    /// Config: a placeholder is not an axis.
    pub(super) fn fill(self, template: &str) -> Result<String> {
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| {
                Error::config(format!("found {template:?}, expected a closing brace after the name of an axis"))
            })?;
            let found = self.places().find(|(axis, _)| axis.path == name);
            let (axis, place) = found.ok_or_else(|| self.unknown(name))?;
            filled.push_str(before);
            filled.push_str(&axis.words[place]);
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn unknown(self, name: &str) -> Error {
        let names: Vec<&str> = self.matrix.axes.iter().map(|axis| axis.path.as_str()).collect();
        let hint =
            nearest(name, names.iter().copied()).map_or(String::new(), |name| format!("; did you mean {{{name}}}?"));
        Error::config(format!("found {{{name}}}, expected an axis of the matrix: {}{hint}", names.join(", ")))
    }
}

impl std::fmt::Display for Point<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values: Vec<String> = self.values().map(|(axis, value)| format!("{axis} = {value}")).collect();
        f.write_str(&values.join(", "))
    }
}

/// Turns `../models/a` into `models-a`, so that a name stays a single path component.
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

    fn matrix() -> JobMatrix {
        let axes = [("a.0".to_string(), json!([0.2, 0.4])), ("b".into(), json!(["x", "../y z", "2:4"]))];
        JobMatrix::new(&BTreeMap::from(axes)).unwrap()
    }

    #[test]
    fn a_matrix_has_every_combination_and_the_last_axis_varies_fastest() {
        let matrix = matrix();
        let names: Vec<String> = (0..matrix.len()).map(|i| matrix.point(i).fill("p{a.0}/{b}-").unwrap()).collect();
        assert_eq!(names, ["p0.2/x-", "p0.2/y-z-", "p0.2/2-4-", "p0.4/x-", "p0.4/y-z-", "p0.4/2-4-"]);
        assert_eq!(matrix.point(4).to_string(), "a.0 = 0.4, b = \"../y z\"");
    }

    #[test]
    fn axes_must_be_lists_and_placeholders_must_be_axes() {
        for bad in [json!(0.2), json!([]), json!("x")] {
            let error = JobMatrix::new(&BTreeMap::from([("a".to_string(), bad)])).unwrap_err();
            assert!(error.to_string().starts_with("a: found"), "{error}");
        }
        let many = json!((0..400).collect::<Vec<_>>());
        let axes = ["a", "b"].map(|axis| (axis.to_string(), many.clone()));
        assert!(JobMatrix::new(&BTreeMap::from(axes)).unwrap_err().to_string().contains("160000 combinations"));
        let matrix = matrix();
        assert!(matrix.point(0).fill("{a.1}").unwrap_err().to_string().contains("did you mean {a.0}?"));
        assert!(matrix.point(0).fill("{a.0").unwrap_err().to_string().contains("closing brace"));
    }
}
