//! The architecture of a model that runs on calibration data.

use briquette_core::{Error, Result};
use briquette_eval::LayerwiseRunner;
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

/// Checks that a network that should run block by block is a sequence of blocks.
///
/// # Errors
/// - Config: it is not; the message has the key.
/// - Config and Input: the checkpoint does not match the architecture.
pub(crate) fn check_offload(is_offloaded: bool, checkpoint: &Checkpoint, arch: Arch) -> Result<()> {
    if is_offloaded && LayerwiseRunner::parts(checkpoint, arch)?.is_none() {
        return Err(Error::config(format!("memory.offload: {arch} is not a sequence of blocks; remove it")));
    }
    Ok(())
}
