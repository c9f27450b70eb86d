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
    let runs = calibration.is_some_and(|calibration| calibration.data.is_some());
    match file_of(own, calibration) {
        _ if !needs_them => Ok(None),
        None if !runs => Err(missing(what, "set calibration.data, or calibration.statistics")),
        found => Ok(found),
    }
}

/// Returns the statistics file of a stage that changes the network, which needs a file.
///
/// # Errors
/// Config: the stage needs statistics and there are none.
pub(crate) fn statistics_file(
    own: &Option<PathBuf>,
    needs_them: bool,
    calibration: Option<&RawCalibration>,
    what: &str,
) -> Result<Option<PathBuf>> {
    match file_of(own, calibration) {
        _ if !needs_them => Ok(None),
        None => Err(missing(what, "set calibration.statistics")),
        found => Ok(found),
    }
}

fn file_of(own: &Option<PathBuf>, calibration: Option<&RawCalibration>) -> Option<PathBuf> {
    own.clone().or(calibration.and_then(|calibration| calibration.statistics.clone()))
}

fn missing(what: &str, remedy: &str) -> Error {
    let message = format!("{what} needs layer inputs; {remedy} to a file that `briquette calibrate` wrote");
    Error::config(format!("statistics: missing; {message}"))
}
