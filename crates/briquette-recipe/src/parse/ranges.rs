//! The range of every number in a recipe: one table, by which values are refused and the schema has its bounds.

use crate::parse::metric::Metric;
use crate::parse::paths;
use crate::parse::raw::RawRecipe;
use briquette_core::{Error, Result};
use serde_json::{Number, Value};

/// The numbers that a key may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberRange {
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// Whether `least` and `most` themselves are out of it.
    pub(crate) is_open: [bool; 2],
    is_whole: bool,
}

/// ModelStage numbers from one to another.
const fn whole(least: u64, most: u64) -> NumberRange {
    NumberRange { least: least as f64, most: most as f64, is_open: [false, false], is_whole: true }
}

/// Numbers from one to another.
const fn within(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [false, false], is_whole: false }
}

/// Numbers above one and up to another.
const fn above(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [true, false], is_whole: false }
}

/// Numbers from one to below another.
const fn below(least: f64, most: f64) -> NumberRange {
    NumberRange { least, most, is_open: [false, true], is_whole: false }
}

pub use briquette_core::threads::MAX_THREADS;
/// The most of anything that is counted: steps, items, tokens. No training or data set has more.
const MANY: u64 = 1 << 30;
/// The longest side of an image.
const MAX_SIDE: u64 = 1 << 14;
/// The largest size of a network.
const MAX_SIZE: u64 = 1 << 24;
/// The largest size of a metric or a statistic; anything larger is a mistake.
const FAR: f64 = 1e12;

/// The keys that are numbers, without places in lists. `*` stands for any name.
pub(crate) const KEYS: [(&str, NumberRange); 50] = [
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
    // No bound: a batch larger than the data holds all of it.
    ("memory.batch_size", whole(1, u64::MAX)),
    ("memory.accumulate", whole(1, MANY)),
    ("gate.min.*", within(-FAR, FAR)),
    ("gate.max.*", within(-FAR, FAR)),
    // Below 1: a stage that drops every weight it chooses leaves nothing.
    ("stage.sparsity", below(0.0, 1.0)),
    // 1 is in: to drop a tensor or two altogether may be meant.
    ("stage.overrides.sparsity", within(0.0, 1.0)),
    ("stage.seed", whole(0, u64::MAX)),
    ("stage.energy", above(0.0, 1.0)),
    ("stage.bytes", above(0.0, 1.0)),
    ("stage.bits", whole(2, 8)),
    ("stage.group", whole(1, MAX_SIZE)),
    ("stage.percentile", within(0.5, 1.0)),
    ("stage.student.*", within(0.0, FAR)),
    ("stage.n_layers", whole(1, MAX_SIZE)),
    ("stage.layers", whole(0, MAX_SIZE)),
    ("stage.loss.weight", within(0.0, FAR)),
    ("stage.loss.temperature", above(0.0, 1e6)),
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
    ("stage.patience", whole(1, MANY)),
    ("stage.save_every", whole(1, MANY)),
    ("stage.prune.sparsity", below(0.0, 1.0)),
    ("stage.prune.begin", within(0.0, 1.0)),
    ("stage.prune.end", within(0.0, 1.0)),
    ("stage.prune.every", whole(1, MANY)),
];

/// The tables that give bounds of metrics, each of which has a range of its own.
const BOUNDS: [&str; 4] = ["budget.min.", "budget.max.", "gate.min.", "gate.max."];

/// The range of a key, by its dotted path in a recipe or a jobs file; none where no number is expected.
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
    /// Whether a number is in it.
    pub fn contains(&self, value: f64) -> bool {
        let is_above = if self.is_open[0] { value > self.least } else { value >= self.least };
        let is_below = if self.is_open[1] { value < self.most } else { value <= self.most };
        is_above && is_below && (!self.is_whole || value.fract() == 0.0)
    }

    /// A number of a command line.
    ///
    /// # Errors
    /// What is expected.
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
    /// A bound as JSON has it: whole where it is whole.
    pub(crate) fn bound(&self, bound: f64) -> Number {
        match self.is_whole {
            true => (bound as u64).into(),
            // So that 1 is printed as 1, not as 1.0.
            false if bound.fract() == 0.0 => (bound as i64).into(),
            false => Number::from_f64(bound).unwrap_or(0.into()),
        }
    }
}

/// Refuses numbers that are out of their key's range, and text that no system call takes.
///
/// # Errors
/// Config: key, value and range.
pub fn check(recipe: &RawRecipe) -> Result<()> {
    // By themselves, not in the tree of JSON below: a path need not be text.
    for named in paths::named(recipe) {
        if named.path.as_os_str().as_encoded_bytes().contains(&0) {
            let message = format!("found a NUL in {:?}, which no name or path has; remove it", named.path);
            return Err(Error::config(message).at(named.key));
        }
    }
    let tree = serde_json::to_value(paths::without(recipe));
    let tree = tree.map_err(|error| Error::bug(format!("the recipe: {error}")))?;
    let mut path = Vec::new();
    walk(&tree, &mut path).map_err(|message| Error::config(message).at(called(&tree, &path)))
}

/// What is wrong with a value at a dotted path, if anything is.
pub(crate) fn refusal_at(path: &str, value: &Value) -> Option<String> {
    let mut path = path.split('.').map(str::to_string).collect();
    walk(value, &mut path).err()
}

/// Looks at every value below `path`. On failure `path` is left as that of the culprit.
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
        // A key that is not given is left out of the tree, so that a null stands for nan or inf, which JSON has no word for.
        Value::Null => refused(&path.join("."), f64::NAN, "no finite number"),
        Value::Number(number) => {
            let value = number.as_f64().unwrap_or(f64::NAN);
            let text = if number.is_f64() { short(value) } else { number.to_string() };
            refused(&path.join("."), value, &text)
        }
        Value::String(text) if text.contains('\0') => {
            Err(format!("found a NUL in {text:?}, which no name or path has; remove it"))
        }
        _ => Ok(()),
    }
}

/// Refuses a number, `text` as it was written, that the key at `path` may not have.
///
/// # Errors
/// What was found, and what was expected.
pub(crate) fn refused(path: &str, value: f64, text: &str) -> Result<(), String> {
    match of(path) {
        Some(range) if !range.contains(value) => Err(format!("found {text}, expected {range}")),
        None if !value.is_finite() => Err(format!("found {text}, expected a finite number")),
        _ => Ok(()),
    }
}

/// A number in the fewest digits that tell it from others. Some keys hold an f32, which would print as 0.10000000149011612.
fn short(value: f64) -> String {
    let is_single = f64::from(value as f32) == value;
    match value.abs() {
        size if size != 0.0 && !(1e-5..1e15).contains(&size) => format!("{value:e}"),
        _ if is_single => (value as f32).to_string(),
        _ => value.to_string(),
    }
}

/// A path as errors have it: `job 2: stage 1 (prune): overrides.0.sparsity`.
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
    fn keys_are_known_wherever_they_stand() {
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
    fn bounds_are_in_or_out_as_they_say() {
        let share = above(0.0, 1.0);
        assert!(share.contains(1.0) && share.contains(1e-300) && !share.contains(0.0) && !share.contains(f64::NAN));
        assert!(!below(0.0, 1.0).contains(1.0) && !whole(1, 3).contains(1.5) && !whole(0, 9).contains(f64::INFINITY));
        assert_eq!(share.to_string(), "a number above 0 and at most 1");
        assert_eq!(whole(0, u64::MAX).to_string(), "a whole number from 0 to 18446744073709551615");
        assert_eq!(below(0.0, 1.0).parse("nan"), Err("expected a number from 0 to below 1".into()));
    }

    #[test]
    fn what_is_out_of_range_is_named_by_its_place() {
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
