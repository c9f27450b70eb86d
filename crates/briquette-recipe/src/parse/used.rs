//! Refuses keys of other tables that no stage of the recipe uses.

use crate::parse::kind::StageKind;
use crate::parse::raw::{RawRecipe, RawStage, StageKeys};
use briquette_core::{Error, Result};
use briquette_formats::OutputFormat;

/// Refuses a key of `[memory]` without effect, such as a batch size where no model runs.
///
/// # Errors
/// Config: no stage uses the key.
pub(crate) fn check_memory(raw: &RawRecipe) -> Result<()> {
    let Some(memory) = &raw.memory else { return Ok(()) };
    let trains = raw.has(StageKind::Distill);
    let calibrates = raw.calibration.as_ref().is_some_and(|calibration| calibration.data.is_some());
    let evaluates = raw.has(StageKind::Evaluate);
    let runs = trains || evaluates;
    let keys = [
        ("offload", memory.offload, evaluates || calibrates),
        ("batch_size", memory.batch_size.is_some(), runs),
        ("accumulate", memory.accumulate.is_some(), trains),
        ("gradient_checkpointing", memory.gradient_checkpointing, trains),
        ("cache_teacher", memory.cache_teacher, trains),
        ("dtype", memory.dtype.is_some(), runs),
    ];
    let format = raw.output.format.as_deref().and_then(OutputFormat::named).unwrap_or_default();
    let holds_codes = raw.has(StageKind::Quantize) && format.held_codes().is_some();
    if holds_codes && !trains && memory.dtype.as_deref().is_some_and(|dtype| dtype != "f32") {
        let message =
            "layers with integer codes compute in f32; remove it, or choose another output.format, such as dense";
        return Err(Error::config(format!("memory.dtype: {message}")));
    }
    let Some((key, ..)) = keys.iter().find(|(_, is_there, is_used)| *is_there && !is_used) else { return Ok(()) };
    let message = match ["offload", "batch_size", "dtype"].contains(key) {
        true => "no stage of this recipe runs a model; add an evaluate or a distill stage, or remove it",
        false => "only a distill stage uses it; add one, or remove it",
    };
    Err(Error::config(format!("memory.{key}: {message}")))
}

/// Refuses `data.select` if no training chooses an epoch with it, or if it is also the evaluation data.
///
/// Choosing by the evaluation data would make the reported result too good.
///
/// # Errors
/// Config: the data is not used, or is the same as `data.eval`.
pub(crate) fn check_select(raw: &RawRecipe) -> Result<()> {
    let Some(data) = raw.data.as_ref().filter(|data| data.select.is_some()) else { return Ok(()) };
    let has_metric = |stage: &RawStage| matches!(&stage.keys, StageKeys::Distill(keys) if keys.metric.is_some());
    if !raw.stage.iter().any(has_metric) {
        let message = "no distill stage of this recipe has a metric that chooses the epoch; add one, or remove it";
        return Err(Error::config(format!("data.select: {message}")));
    }
    if data.select == data.eval {
        let message = "found the same data as data.eval, which measures the result; set other data, or remove it";
        return Err(Error::config(format!("data.select: {message}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::parse::Recipe;
    use crate::parse::text::parse;
    use std::path::Path;

    fn refused(stages: &str, memory: &str) -> Option<String> {
        let head = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n[data]\neval = \"d\"\n";
        let raw = parse(&format!("{head}[memory]\n{memory}\n{stages}"), "r.toml").unwrap();
        Recipe::from_raw(raw, Path::new("")).err().map(|error| {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        })
    }

    #[test]
    fn unused_keys_are_refused() {
        let (cast, evaluate) = ("[[stage]]\nkind = \"cast\"\ndtype = \"f16\"\n", "[[stage]]\nkind = \"evaluate\"\n");
        let quantize = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n[[stage]]\nkind = \"evaluate\"\n";
        let cases = [
            (cast, "offload = true", "memory.offload: no stage of this recipe runs a model"),
            (cast, "batch_size = \"auto\"", "memory.batch_size: no stage"),
            (cast, "dtype = \"bf16\"", "memory.dtype: no stage"),
            (quantize, "dtype = \"bf16\"", "memory.dtype: layers with integer codes compute in f32"),
            (evaluate, "accumulate = 2", "memory.accumulate: only a distill stage uses it"),
            (evaluate, "gradient_checkpointing = true", "memory.gradient_checkpointing: only"),
            (evaluate, "cache_teacher = true", "memory.cache_teacher: only"),
        ];
        for (stages, memory, expected) in cases {
            let error = refused(stages, memory).unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(refused(evaluate, "limit = \"1GB\"\nbatch_size = 3\ndtype = \"f16\""), None);
        assert_eq!(refused(quantize, "dtype = \"f32\""), None);
        assert_eq!(refused(cast, ""), None);
    }

    #[test]
    fn invalid_values_are_refused_without_stages() {
        for stages in ["", "[[stage]]\nkind = \"evaluate\"\n"] {
            let cases = [
                ("dtype = \"nonsense\"", "memory.dtype: found \"nonsense\""),
                ("accumulate = 0", "memory.accumulate: found 0"),
            ];
            for (memory, expected) in cases {
                let error = refused(stages, memory).unwrap();
                assert!(error.starts_with(expected), "{error}");
            }
        }
    }
}
