//! The architecture of a model that runs on calibration data.

use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_models::Arch;

/// Returns the requested architecture, or else the one detected from the files.
///
/// # Errors
/// Config: the architecture is unknown, or the files do not determine it.
pub(crate) fn arch_of(requested: Option<&str>, checkpoint: &Checkpoint) -> Result<Arch> {
    let requested = requested.map(|name| name.parse().map_err(|error: Error| error.at("model.arch")));
    requested.transpose()?.map_or_else(|| Arch::detect(checkpoint), Ok)
}
