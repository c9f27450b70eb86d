//! The headers and the config.json that a graph is built from.

use crate::config::Folder;
use briquette_core::Result;
use briquette_formats::{Checkpoint, model_config};
use briquette_graph::Config;
pub(crate) use briquette_graph::GraphHeaders;

/// Reads config.json; an absent file has no keys.
pub(crate) fn config_of(checkpoint: &Checkpoint) -> Result<Config> {
    Config::parse(model_config::read(checkpoint)?.as_deref())
}

/// Returns the config.json in the directory of an ONNX model, also if the model was named by its file.
pub(crate) fn config_beside(checkpoint: &Checkpoint) -> Result<Config> {
    Config::parse(Folder::of(checkpoint).read_whole(model_config::FILE_NAME)?.as_deref())
}
