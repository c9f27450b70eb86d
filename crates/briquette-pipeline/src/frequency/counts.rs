//! Counts the tokens of calibration data.

use briquette_core::Result;
use briquette_formats::Checkpoint;
use briquette_recipe::CalibrationRun;

/// The tokens of calibration data.
pub(super) struct CountedTokens {
    /// The occurrences of each token in all of the data.
    pub(super) counts: Vec<u64>,
    /// The share of the data that the calibration runs.
    pub(super) share: f64,
}

impl CountedTokens {
    /// Counts the tokens of all of a calibration's data by the tokenizer alone.
    #[cfg(feature = "model")]
    pub(super) fn of(calibration: &CalibrationRun, checkpoint: &Checkpoint) -> Result<Self> {
        let arch = crate::arch::arch_of(calibration.arch.as_deref(), checkpoint)?;
        let (spec, mut input) = (crate::training::spec_of(&calibration.data), arch.input(checkpoint)?);
        calibration.limit.map_or(Ok(()), |limit| spec.check_size(limit))?;
        let data = spec.open(arch.task())?;
        let (counts, n_items) = briquette_eval::samples::token_counts(&mut input, &data, &spec)?;
        let share = (calibration.n_samples as f64 / n_items.max(1) as f64).min(1.0);
        Ok(Self { counts, share })
    }

    /// Returns an error: this build cannot run models.
    #[cfg(not(feature = "model"))]
    pub(super) fn of(_: &CalibrationRun, _: &Checkpoint) -> Result<Self> {
        Err(briquette_core::Error::lacks_feature("model", "run models").at("calibration.data"))
    }
}
