//! The calibration run: the data and settings that gather input statistics.

use crate::parse::budget;
use crate::parse::raw::{RawCalibration, RawData, RawMemory, RawRecipe, StageKeys};
use crate::parse::words::one_of;
use briquette_core::{Error, Result};
use briquette_methods::quant::ActivationRange;

/// Default number of calibration items: sentences, images or windows of text.
pub const N_SAMPLES: usize = 512;

/// A run of the model that gathers input statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationRun {
    /// The data, as `eval`, and its preprocessing.
    pub data: RawData,
    /// The architecture, if the recipe sets it.
    pub arch: Option<String>,
    /// The largest number of items.
    pub n_samples: usize,
    /// The seed that chooses the items.
    pub seed: u64,
    /// How the range of each activation is chosen for static int8.
    pub activation_range: ActivationRange,
    /// Whether Gram matrices are gathered even if no method needs them.
    pub has_gram: bool,
    /// Whether each block gets the outputs of the compressed blocks before it.
    pub is_sequential: bool,
    /// Whether weights are corrected for the errors of the layers before them.
    pub is_corrected: bool,
    /// Memory limit in bytes.
    pub limit: Option<u64>,
    /// Whether only one block's weights are in memory at a time. Models with blocks always run this way.
    pub is_offloaded: bool,
}

impl CalibrationRun {
    /// Reads the calibration run of a recipe with resolved paths.
    ///
    /// Returns `None` if the recipe has a statistics file or no calibration.
    ///
    /// # Errors
    /// Config: a key is missing, invalid or without effect.
    pub(crate) fn from_raw(raw: &RawRecipe) -> Result<Option<Self>> {
        let Some(keys) = &raw.calibration else { return Ok(None) };
        if !raw.uses_calibration() && !budget::runs_model(raw) {
            let message = "no stage needs input statistics; choose a method that does (wanda, sparsegpt, admm, range weighted, \
                           round gptq, reconstruct signround, column_scales, bias_correction, scheme int8-static), or remove the table";
            return Err(Error::config(format!("calibration: {message}")));
        }
        let Some(path) = keys.data.clone() else { return without_data(keys).map(|()| None) };
        if keys.statistics.is_some() {
            return Err(Error::config(
                "calibration.statistics: calibration.data already provides them; remove one of the two",
            ));
        }
        let RawData { size, crop, tile, normalize, strict, .. } = raw.data.clone().unwrap_or_default();
        let max_length = keys.max_length;
        let data = RawData { eval: Some(path), max_length, size, crop, tile, normalize, strict, ..RawData::default() };
        let memory: RawMemory = raw.memory.clone().unwrap_or_default();
        let moves = raw.stage.iter().any(|stage| moves(&stage.keys));
        let is_sequential = keys.sequential.unwrap_or(moves);
        if keys.correct == Some(true) && !(moves && is_sequential) {
            let message = "needs a method that updates weights (sparsegpt, admm, round gptq, reconstruct signround), and sequential calibration; remove it";
            return Err(Error::config(format!("calibration.correct: {message}")));
        }
        // A correction takes about twice the memory, so a limit excludes it unless the recipe asks for it.
        let limit = memory.limit_bytes()?;
        let corrects = keys.correct.unwrap_or(limit.is_none());
        Ok(Some(Self {
            data,
            arch: raw.model.arch.clone(),
            n_samples: keys.samples.unwrap_or(N_SAMPLES),
            seed: keys.seed.unwrap_or(0),
            activation_range: activation_range(raw, keys)?,
            has_gram: keys.gram,
            is_sequential,
            is_corrected: moves && is_sequential && corrects,
            limit,
            is_offloaded: memory.offload,
        }))
    }
}

/// Returns how ranges of activations are chosen.
fn activation_range(raw: &RawRecipe, keys: &RawCalibration) -> Result<ActivationRange> {
    let Some(name) = &keys.activation_range else { return Ok(ActivationRange::default()) };
    if !raw.has_static_activations() {
        let message = "only the scheme int8-static has ranges of activations; remove it";
        return Err(Error::config(format!("calibration.activation_range: {message}")));
    }
    one_of("calibration.activation_range", name, &ActivationRange::NAMED)
}

/// Checks a calibration table without data: it needs a statistics file and no key of a run.
fn without_data(keys: &RawCalibration) -> Result<()> {
    if keys.statistics.is_none() {
        return Err(Error::config(
            "calibration.data: missing; set the data to run the model on, or calibration.statistics",
        ));
    }
    let of_a_run = [
        ("samples", keys.samples.is_some()),
        ("max_length", keys.max_length.is_some()),
        ("seed", keys.seed.is_some()),
        ("activation_range", keys.activation_range.is_some()),
        ("gram", keys.gram),
        ("sequential", keys.sequential.is_some()),
        ("correct", keys.correct.is_some()),
    ];
    match of_a_run.iter().find(|(_, is_there)| *is_there) {
        Some((key, _)) => {
            Err(Error::config(format!("calibration.{key}: has no effect with calibration.statistics; remove it")))
        }
        None => Ok(()),
    }
}

/// Returns whether a stage updates weights.
fn moves(keys: &StageKeys) -> bool {
    match keys {
        StageKeys::Prune(keys) => keys.updates_weights(),
        StageKeys::Quantize(keys) => keys.updates_weights(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::text::parse;
    use crate::parse::{CalibrationRun, Recipe};

    fn recipe(tables: &str) -> Result<Recipe, String> {
        let head = "[model]\npath = \"m\"\n[output]\npath = \"o\"\n";
        let raw = parse(&format!("{head}{tables}"), "r.toml").unwrap();
        Recipe::from_raw(raw, "d".as_ref()).map_err(|error| error.to_string())
    }

    const GPTQ: &str = "[[stage]]\nkind = \"quantize\"\nscheme = \"int4-g64\"\nround = \"gptq\"\n";
    const WANDA: &str = "[[stage]]\nkind = \"prune\"\nmethod = \"wanda\"\nsparsity = 0.5\n";

    #[test]
    fn a_refit_of_blocks_does_not_calibrate_later_stages() {
        let asked = |stages: &str| recipe(&format!("[calibration]\ndata = \"t\"\n{stages}")).unwrap().asked;
        let drop = "[[stage]]\nkind = \"shrink\"\ndrop_blocks = [1]\n";
        let int8 = "[[stage]]\nkind = \"quantize\"\nscheme = \"int8\"\n";
        let (plain, compensated) = (asked(&format!("{drop}{int8}")), asked(&format!("{drop}{GPTQ}")));
        assert!(plain.needs_statistics() && !plain.tensors_need_statistics());
        assert!(compensated.tensors_need_statistics());
    }

    #[test]
    fn error_compensation_runs_block_by_block() {
        let asked = |stages: &str, keys: &str| -> CalibrationRun {
            recipe(&format!("[calibration]\ndata = \"t\"\n{keys}{stages}")).unwrap().calibration.unwrap()
        };
        let found = asked(GPTQ, "samples = 64\nmax_length = 512\nseed = 3\n");
        assert_eq!((found.n_samples, found.seed, found.is_sequential, found.has_gram), (64, 3, true, false));
        assert_eq!((found.data.max_length, found.data.eval.as_deref()), (Some(512), Some("d/t".as_ref())));
        assert!(!asked(WANDA, "").is_sequential && asked(WANDA, "sequential = true\n").is_sequential);
        let apart = asked(GPTQ, "sequential = false\n");
        assert!(!apart.is_sequential && !apart.is_corrected && found.is_corrected);
        assert!(asked(GPTQ, "correct = true\n").is_corrected && !asked(GPTQ, "correct = false\n").is_corrected);
        let limited = "[memory]\nlimit = \"1GB\"\n";
        assert!(!asked(&format!("{limited}{GPTQ}"), "").is_corrected);
        assert!(asked(&format!("{limited}{GPTQ}"), "correct = true\n").is_corrected);
        assert!(!asked(WANDA, "").is_corrected && !asked(WANDA, "sequential = true\n").is_corrected);
    }

    #[test]
    fn stages_without_statistics_use_those_of_the_calibration() {
        let found = recipe(&format!("[calibration]\nstatistics = \"s\"\n{WANDA}{GPTQ}")).unwrap();
        assert!(found.calibration.is_none());
        let of: Vec<_> = found.stages.iter().filter_map(|stage| stage.statistics()).collect();
        assert_eq!(of, [std::path::Path::new("d/s"); 2]);
    }

    #[test]
    fn contradictory_calibration_keys_are_refused() {
        let magnitude = "[[stage]]\nkind = \"prune\"\nsparsity = 0.5\n";
        let cases = [
            (GPTQ.to_string(), "stage 1 (quantize): statistics: missing; round `gptq` needs layer inputs"),
            (format!("[calibration]\ndata = \"t\"\n{magnitude}"), "calibration: no stage needs input statistics"),
            (format!("[calibration]\nsamples = 3\n{GPTQ}"), "stage 1 (quantize): statistics: missing"),
            (
                format!("[calibration]\ndata = \"t\"\nstatistics = \"s\"\n{GPTQ}"),
                "calibration.statistics: calibration.data already provides",
            ),
            (
                format!("[calibration]\nstatistics = \"s\"\nsamples = 3\n{GPTQ}"),
                "calibration.samples: has no effect with",
            ),
            (format!("[calibration]\ndata = \"t\"\ncorrect = true\n{WANDA}"), "calibration.correct: needs a method"),
            (
                format!("[calibration]\ndata = \"t\"\nsequential = false\ncorrect = true\n{GPTQ}"),
                "calibration.correct: needs a method",
            ),
            (format!("[calibration]\ndata = \"t\"\nsamples = 0\n{GPTQ}"), "calibration.samples: found 0"),
        ];
        for (tables, expected) in cases {
            let error = recipe(&tables).unwrap_err();
            assert!(error.starts_with(expected), "{tables}: {error}");
        }
    }
}
