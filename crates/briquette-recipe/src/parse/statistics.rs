//! The statistics file of a stage.

use crate::parse::raw::RawCalibration;
use briquette_core::{Error, Result};
use std::path::PathBuf;

/// Returns the statistics file of a stage, or of the calibration; `None` if the calibration runs on data.
///
/// # Errors
/// Config: the stage needs statistics and there are none.
pub(crate) fn statistics_of(
    own: &Option<PathBuf>,
    needs_them: bool,
    calibration: Option<&RawCalibration>,
    what: &str,
) -> Result<Option<PathBuf>> {
    if !needs_them {
        return Ok(None);
    }
    let shared = calibration.and_then(|calibration| calibration.statistics.clone());
    let runs = calibration.is_some_and(|calibration| calibration.data.is_some());
    match own.clone().or(shared) {
        None if !runs => Err(Error::config(format!(
            "statistics: missing; {what} needs layer inputs; set calibration.data, or calibration.statistics to a file that \
             `briquette calibrate` wrote"
        ))),
        found => Ok(found),
    }
}
