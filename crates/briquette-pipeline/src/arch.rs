//! The architecture of a model that runs on calibration data.

use briquette_core::{Error, Result};
use briquette_formats::Checkpoint;
use briquette_models::{Arch, ModelTask};

/// The architecture that is asked for, or else the one that files show.
///
/// # Errors
/// Config where there is no such architecture, or files show none.
pub(crate) fn arch_of(asked: Option<&str>, checkpoint: &Checkpoint) -> Result<Arch> {
    let asked = asked.map(|name| name.parse().map_err(|error: Error| error.at("model.arch")));
    asked.transpose()?.map_or_else(|| Arch::detect(checkpoint), Ok)
}

/// Refuses to run block by block a network that is no sequence of blocks.
///
/// # Errors
/// Config, naming the key.
pub(crate) fn check_offload(is_offloaded: bool, arch: Arch) -> Result<()> {
    match is_offloaded && arch.task() == ModelTask::Classifier {
        true => Err(Error::config(format!("memory.offload: {arch} is no row of blocks; leave it out"))),
        false => Ok(()),
    }
}
