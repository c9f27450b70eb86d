//! Translates errors of recipes that flags made: keys become flags.

use super::stage_flags::What;
use briquette::Error;

/// The flag of each key outside of stages.
const FLAGS: [(&str, &str); 22] = [
    ("budget.bytes", "--bytes"),
    ("budget.bits", "--bits"),
    ("budget.min", "--min"),
    ("budget.max", "--max"),
    ("budget.choices", "--choices"),
    ("budget.experimental", "--experimental"),
    ("budget.sensitivity_file", "--sensitivity-file"),
    ("budget.sensitivity", "--sensitivity"),
    ("budget.loss", "--loss"),
    ("calibration.data", "--data"),
    ("calibration.statistics", "--statistics"),
    ("calibration.samples", "--samples"),
    ("calibration.max_length", "--max-length"),
    ("calibration.activation_range", "--activation-range"),
    ("data.eval", "--eval"),
    ("data.max_length", "--max-length"),
    ("output.format", "--format"),
    ("output.storage", "--storage"),
    ("output.path", "--output"),
    ("model.strip_prefix", "--strip-prefix"),
    ("model.layout", "--layout"),
    ("model.key", "--key"),
];

/// The flag of each key of a stage, by the kind of the stage.
const STAGE_FLAGS: [(&str, &str, &str); 18] = [
    ("shrink", "ratio", "--shrink"),
    ("shrink", "method", "--shrink-method"),
    ("shrink", "parts", "--shrink-parts"),
    ("fold", "method", "--fold"),
    ("prune", "sparsity", "--prune"),
    ("prune", "pattern", "--prune-pattern"),
    ("prune", "scope", "--scope"),
    ("prune", "method", "--prune-method"),
    ("prune", "roles", "--prune-roles"),
    ("prune", "seed", "--seed"),
    ("quantize", "scheme", "--quantize"),
    ("quantize", "range", "--range"),
    ("quantize", "round", "--round"),
    ("quantize", "reconstruct", "--reconstruct"),
    ("quantize", "column_scales", "--column-scales"),
    ("quantize", "bias_correction", "--bias-correction"),
    ("quantize", "roles", "--quantize-roles"),
    ("cast", "dtype", "--cast"),
];

/// Returns the error with flags instead of keys, if flags made the recipe.
pub(super) fn in_flags(error: Error, what: &What) -> Error {
    if what.recipe.is_some() {
        return error;
    }
    let message = FLAGS.iter().fold(of_stage(&error.message), |message, (key, flag)| with_flag(&message, key, flag));
    Error { message, ..error }
}

/// Replaces each mention of a key by a flag, except where the key is part of a longer word or a path.
fn with_flag(message: &str, key: &str, flag: &str) -> String {
    let is_sign = |letter: char| letter.is_alphanumeric() || "-_./".contains(letter);
    let (mut out, mut rest) = (String::new(), message);
    while let Some((before, after)) = rest.split_once(key) {
        let end = after.trim_start_matches('.');
        let is_part = before.ends_with(is_sign) || after.starts_with(is_sign) && end.starts_with(is_sign);
        out += before;
        out += if is_part { key } else { flag };
        rest = after;
    }
    out + rest
}

/// Replaces the key of a stage at the start of a message by its flag: `stage 1 (prune): sparsity: found 7`.
fn of_stage(message: &str) -> String {
    // An error about an open scheme has no stage.
    if let Some(rest) = message.strip_prefix("scheme: ") {
        return format!("--quantize: {rest}");
    }
    let split = || {
        let (stage, rest) = message.strip_prefix("stage ")?.split_once("): ")?;
        let (_, kind) = stage.split_once(" (")?;
        let (key, rest) = rest.split_once(": ")?;
        let both = ["include", "exclude"].iter().find(|name| **name == key);
        let flag = STAGE_FLAGS.iter().find(|(of, name, _)| (*of, *name) == (kind, key)).map(|(_, _, flag)| *flag);
        let flag = flag.map(str::to_string).or_else(|| both.map(|name| format!("--{name}")))?;
        Some(format!("{flag}: {rest}"))
    };
    split().unwrap_or_else(|| message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_flags_unless_a_recipe_has_them() {
        let what = What::default();
        let cases = [
            ("stage 2 (quantize): range: found \"x\"", "--range: found \"x\""),
            ("stage 1 (prune): exclude: pattern \"a[\"", "--exclude: pattern \"a[\""),
            ("stage 1 (prune): order: found", "stage 1 (prune): order: found"),
            ("budget.sensitivity: give calibration.data", "--sensitivity: give --data"),
            ("budget.sensitivity_file: no", "--sensitivity-file: no"),
            ("model.safetensors: no such file", "model.safetensors: no such file"),
            ("a/data.eval: found data.eval.txt, give data.eval.", "a/data.eval: found data.eval.txt, give --eval."),
        ];
        for (message, expected) in cases {
            assert_eq!(in_flags(Error::config(message), &what).message, expected);
        }
        let recipe = What { recipe: Some("r.toml".into()), ..What::default() };
        assert_eq!(in_flags(Error::config("budget.bytes: no"), &recipe).message, "budget.bytes: no");
    }
}
