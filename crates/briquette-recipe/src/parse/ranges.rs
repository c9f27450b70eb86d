//! The range of every number in a recipe: one table for validation and for the JSON Schema.

use crate::parse::metric::Metric;
use crate::parse::paths;
use crate::parse::raw::RawRecipe;
use briquette_core::{Error, Result};
use serde_json::{Number, Value};

/// The valid numbers of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberRange {
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// Whether `least` and `most` themselves are excluded.
    pub(crate) is_open: [bool; 2],
    is_whole: bool,
}

/// Returns the range of whole numbers from `least` to `most`.
const fn whole(least: u64, most: u64) -> NumberRange {
    NumberRange { least: least as f64, most: most as f64, is_open: [false, false], is_whole: true }
}

/// Returns the range from `least` to `most`.
const fn within(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [false, false], is_whole: false }
}

/// Returns the range above `least`, up to `most`.
const fn above(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [true, false], is_whole: false }
}

/// Returns the range from `least` to below `most`.
const fn below(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [false, true], is_whole: false }
}

/// Returns the range above `least` and below `most`.
const fn between(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [true, true], is_whole: false }
}

pub use briquette_core::threads::MAX_THREADS;
/// Upper bound of counts: steps, items, tokens.
const MANY: u64 = 1 << 30;
/// Longest side of an image.
const MAX_SIDE: u64 = 1 << 14;
/// Upper bound of the sizes of a network.
const MAX_SIZE: u64 = 1 << 24;
/// Upper bound of metrics and statistics.
const FAR: f64 = 1e12;

/// The numeric keys, without list indices; `*` matches any name.
pub(crate) const KEYS: [(&str, NumberRange); 62] = [
    ("budget.bits", above(0.0, 8.0)),
    ("budget.max.*", within(-FAR, FAR)),
    ("budget.min.*", within(-FAR, FAR)),
    ("budget.samples", whole(1, MANY)),
    ("calibration.samples", whole(1, MANY)),
    ("calibration.max_length", whole(1, MAX_SIZE)),
    ("calibration.seed", whole(0, u64::MAX)),
    ("data.share", above(0.0, 1.0)),
    ("data.label_noise", within(0.0, 1.0)),
    ("data.max_length", whole(1, MAX_SIZE)),
    ("data.stride", whole(1, MAX_SIZE)),
    ("data.size", whole(1, MAX_SIDE)),
    ("data.crop", whole(1, MAX_SIDE)),
    ("data.tile", whole(1, MAX_SIDE)),
    ("data.normalize.mean", within(-FAR, FAR)),
    ("data.normalize.std", above(0.0, FAR)),
    ("data.workers", whole(0, MAX_THREADS as u64)),
    // No bound: a batch larger than the data contains all of it.
    ("memory.batch_size", whole(1, u64::MAX)),
    ("memory.accumulate", whole(1, MANY)),
    ("gate.min.*", within(-FAR, FAR)),
    ("gate.max.*", within(-FAR, FAR)),
    // Below 1: a stage may not prune every weight.
    ("stage.sparsity", below(0.0, 1.0)),
    // At most 1: an override may remove a few tensors completely.
    ("stage.overrides.sparsity", within(0.0, 1.0)),
    ("stage.seed", whole(0, u64::MAX)),
    ("stage.energy", above(0.0, 1.0)),
    ("stage.bytes", above(0.0, 1.0)),
    ("stage.ratio", below(0.0, 1.0)),
    ("stage.count", whole(1, MAX_SIZE)),
    ("stage.multiply_adds", between(0.0, 1.0)),
    ("stage.latency", between(0.0, 1.0)),
    ("stage.drop_blocks", whole(0, MAX_SIZE)),
    ("stage.drop_n_blocks", whole(1, MAX_SIZE)),
    ("stage.floor", within(0.0, 1.0)),
    ("stage.alpha", within(0.0, 1.0)),
    ("stage.multiple", whole(1, MAX_SIZE)),
    ("stage.bits", whole(2, 8)),
    ("stage.group", whole(1, MAX_SIZE)),
    ("stage.percentile", within(0.5, 1.0)),
    ("stage.student.*", within(0.0, FAR)),
    ("stage.n_layers", whole(1, MAX_SIZE)),
    ("stage.layers", whole(0, MAX_SIZE)),
    ("stage.loss.weight", within(0.0, FAR)),
    ("stage.loss.temperature", above(0.0, 1e6)),
    ("stage.loss.beta", within(0.0, 1.0)),
    ("stage.loss.smoothing", below(0.0, 1.0)),
    ("stage.loss.layers", whole(0, MAX_SIZE)),
    ("stage.loss.heads", whole(1, MAX_SIZE)),
    ("stage.epochs", whole(1, MANY)),
    ("stage.learning_rate", above(0.0, 1.0)),
    ("stage.weight_decay", within(0.0, 1.0)),
    ("stage.momentum", below(0.0, 1.0)),
    ("stage.warmup", below(0.0, 1.0)),
    ("stage.clip", above(0.0, FAR)),
    ("stage.rate", within(0.0, FAR)),
    ("stage.on_policy", within(0.0, 1.0)),
    ("stage.max_new_tokens", whole(1, MAX_SIDE)),
    ("stage.patience", whole(1, MANY)),
    ("stage.save_every", whole(1, MANY)),
    ("stage.prune.sparsity", below(0.0, 1.0)),
    ("stage.prune.begin", within(0.0, 1.0)),
    ("stage.prune.end", within(0.0, 1.0)),
    ("stage.prune.every", whole(1, MANY)),
];

/// Tables of metric bounds; each metric has its own range.
const BOUNDS: [&str; 4] = ["budget.min.", "budget.max.", "gate.min.", "gate.max."];

/// Returns the range of a key by its dotted path in a recipe or a jobs file. Returns `None` if the key is not numeric.
pub fn of(path: &str) -> Option<NumberRange> {
    const AROUND: [&str; 4] = ["job", "base", "set", "matrix"];
    let is_place = |segment: &&str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let segments: Vec<&str> =
        path.split('.').filter(|segment| !is_place(segment)).skip_while(|segment| AROUND.contains(segment)).collect();
    let path = segments.join(".");
    if let Some(metric) = BOUNDS.iter().find_map(|table| path.strip_prefix(table)).and_then(Metric::named) {
        let [least, most] = metric.range;
        return Some(within(least, most.min(FAR)));
    }
    let is_of = |key: &str| match key.strip_suffix(".*") {
        Some(table) => path == table || path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')),
        None => path == key,
    };
    KEYS.iter().find(|(key, _)| is_of(key)).map(|(_, range)| *range)
}

impl NumberRange {
    /// Returns whether the number is in the range.
    pub fn contains(&self, value: f64) -> bool {
        let is_above = if self.is_open[0] { value > self.least } else { value >= self.least };
        let is_below = if self.is_open[1] { value < self.most } else { value <= self.most };
        is_above && is_below && (!self.is_whole || value.fract() == 0.0)
    }

    /// Parses a number from the command line.
    ///
    /// # Errors
    /// The expected range, if the text is not a number within it.
    pub fn parse(&self, text: &str) -> Result<f64, String> {
        let value = text.parse().ok().filter(|value| self.contains(*value));
        value.ok_or_else(|| format!("expected {self}"))
    }
}

impl std::fmt::Display for NumberRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (least, most) = (self.bound(self.least), self.bound(self.most));
        let kind = if self.is_whole { "a whole number" } else { "a number" };
        match self.is_open {
            [false, false] => write!(f, "{kind} from {least} to {most}"),
            [true, false] => write!(f, "{kind} above {least} and at most {most}"),
            [false, true] => write!(f, "{kind} from {least} to below {most}"),
            [true, true] => write!(f, "{kind} above {least} and below {most}"),
        }
    }
}

impl NumberRange {
    /// Returns a bound as a JSON number: an integer if the range has whole numbers.
    pub(crate) fn bound(&self, bound: f64) -> Number {
        match self.is_whole {
            true => (bound as u64).into(),
            // Prints 1 as 1 instead of 1.0.
            false if bound.fract() == 0.0 => (bound as i64).into(),
            false => Number::from_f64(bound).unwrap_or(0.into()),
        }
    }
}

/// Refuses numbers out of the range of their key, and texts with a NUL character.
///
/// # Errors
/// Config: a value is invalid; the message has the key, the value and the range.
pub fn check(recipe: &RawRecipe) -> Result<()> {
    // Paths are checked separately, because a path may not be valid UTF-8 and so has no JSON form.
    for named in paths::named(recipe) {
        if named.path.as_os_str().as_encoded_bytes().contains(&0) {
            let message = format!("found a NUL character in {:?}; remove it", named.path);
            return Err(Error::config(message).at(named.key));
        }
    }
    let tree = serde_json::to_value(paths::without(recipe));
    let tree = tree.map_err(|error| Error::bug(format!("the recipe: {error}")))?;
    let mut path = Vec::new();
    walk(&tree, &mut path).map_err(|message| Error::config(message).at(called(&tree, &path)))
}

/// Returns the error message for a value at a dotted path, if it is invalid.
pub(crate) fn refusal_at(path: &str, value: &Value) -> Option<String> {
    let mut path = path.split('.').map(str::to_string).collect();
    walk(value, &mut path).err()
}

/// Checks every value below `path`. On failure, `path` is that of the invalid value.
fn walk(value: &Value, path: &mut Vec<String>) -> Result<(), String> {
    let mut below = |step: String, value: &Value| {
        path.push(step);
        walk(value, path)?;
        path.pop();
        Ok(())
    };
    match value {
        Value::Object(table) => table.iter().try_for_each(|(key, value)| below(key.clone(), value)),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(place, value)| below(place.to_string(), value)),
        // Keys that are not set are not in the tree, so a null is a NaN or infinity, which JSON does not have.
        Value::Null => refused(&path.join("."), f64::NAN, "no finite number"),
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or(f64::NAN);
            let text = if number.is_f64() { short(value) } else { number.to_string() };
            refused(&path.join("."), value, &text)
        }
        Value::String(text) if text.contains('\0') => Err(format!("found a NUL character in {text:?}; remove it")),
        _ => Ok(()),
    }
}

/// Refuses a number that is out of the range of the key at `path`; `text` is the number as written.
///
/// # Errors
/// The number that was found and the expected range.
pub(crate) fn refused(path: &str, value: f64, text: &str) -> Result<(), String> {
    match of(path) {
        Some(range) if !range.contains(value) => Err(format!("found {text}, expected {range}")),
        None if !value.is_finite() => Err(format!("found {text}, expected a finite number")),
        _ => Ok(()),
    }
}

/// Prints a number with the fewest digits that identify it. An f32 would otherwise print as
/// 0.10000000149011612.
fn short(value: f64) -> String {
    let is_single = f64::from(value as f32) == value;
    match value.abs() {
        size if size != 0.0 && !(1e-5..1e15).contains(&size) => format!("{value:e}"),
        _ if is_single => (value as f32).to_string(),
        _ => value.to_string(),
    }
}

/// Returns a path as error messages print it: `job 2: stage 1 (prune): overrides.0.sparsity`.
pub(crate) fn called(tree: &Value, path: &[String]) -> String {
    let (mut words, mut rest, mut node) = (Vec::new(), Vec::new(), tree);
    let mut steps = path.iter();
    while let Some(step) = steps.next() {
        node = node.get(step).unwrap_or(&Value::Null);
        match (step.as_str(), node.as_array()) {
            ("stage" | "job", Some(items)) if rest.is_empty() => {
                let Some(place) = steps.next().and_then(|place| place.parse::<usize>().ok()) else { break };
                node = items.get(place).unwrap_or(&Value::Null);
                let kind = node.get("kind").and_then(Value::as_str).filter(|_| step == "stage");
                words.push(format!("{step} {}", place + 1) + &kind.map_or(String::new(), |kind| format!(" ({kind})")));
            }
            ("base", _) if rest.is_empty() => words.push(step.clone()),
            _ => rest.push(step.as_str()),
        }
    }
    words.extend((!rest.is_empty()).then(|| rest.join(".")));
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::text::parse;

    #[test]
    fn ranges_are_found_at_every_nesting() {
        let sparsity = of("stage.sparsity");
        assert!(sparsity.is_some());
        for path in
            ["stage.0.sparsity", "job.3.stage.0.sparsity", "job.0.set.stage.1.sparsity", "matrix.stage.0.sparsity.2"]
        {
            assert_eq!(of(path), sparsity, "{path}");
        }
        assert_eq!(of("gate.min.recall@0.5"), Some(within(-FAR, FAR)));
        assert_eq!(of("gate.min.cosine"), Some(within(-1.0, 1.0)));
        assert_eq!(of("job.0.budget.max.reference_perplexity"), Some(within(1.0, FAR)));
        assert_eq!(of("base.stage.0.layers.3"), Some(whole(0, MAX_SIZE)));
        assert_eq!((of("stage.scheme"), of("")), (None, None));
    }

    #[test]
    fn bounds_are_inclusive_or_exclusive() {
        let share = above(0.0, 1.0);
        assert!(share.contains(1.0) && share.contains(1e-300) && !share.contains(0.0) && !share.contains(f64::NAN));
        assert!(!below(0.0, 1.0).contains(1.0) && !whole(1, 3).contains(1.5) && !whole(0, 9).contains(f64::INFINITY));
        assert_eq!(share.to_string(), "a number above 0 and at most 1");
        assert_eq!(whole(0, u64::MAX).to_string(), "a whole number from 0 to 18446744073709551615");
        assert_eq!(below(0.0, 1.0).parse("nan"), Err("expected a number from 0 to below 1".into()));
    }

    #[test]
    fn range_errors_have_the_path_of_the_value() {
        let cases = [
            (
                "[[stage]]\nkind = \"prune\"\nsparsity = 1",
                "stage 1 (prune): sparsity: found 1, expected a number from 0",
            ),
            ("[data]\ncrop = [3, 0]", "data.crop.1: found 0, expected a whole number from 1 to 16384"),
            (
                "[[stage]]\nkind = \"distill\"\nloss = [{ kind = \"logits\", temperature = -0.1 }]",
                "stage 1 (distill): loss.0.temperature: found -0.1, expected a number above 0",
            ),
            (
                "[[stage]]\nkind = \"distill\"\nstudent = { hidden_size = -1 }",
                "stage 1 (distill): student.hidden_size: found -1",
            ),
            ("[gate.min]\ncosine = 1e300", "gate.min.cosine: found 1e300, expected a number from -1 to 1"),
            ("[gate.max]\nkl = -1", "gate.max.kl: found -1, expected a number from 0 to"),
            ("[output]\npath = \"a\\u0000b\"", "output.path: found a NUL"),
        ];
        for (text, expected) in cases {
            let error = check(&parse(text, "r.toml").unwrap()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        let mut raw = RawRecipe::default();
        raw.gate = Some(crate::parse::raw::RawGate { min: [("cosine".into(), f64::NAN)].into(), ..Default::default() });
        assert!(check(&raw).unwrap_err().to_string().contains("gate.min.cosine: found no finite number"));
    }
}
