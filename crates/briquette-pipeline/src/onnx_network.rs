//! The network of an ONNX model and its settings, for an output that holds its weights in another format.

use briquette_core::Result;
use briquette_formats::onnx::{MAX_NETWORK_BYTES, NETWORK_FILE, network_of};
use briquette_formats::{Checkpoint, limits};
use std::path::{Path, PathBuf};

/// The files with settings that a model of texts or images is run with.
const SETTINGS: [&str; 12] = [
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "data_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];

/// Returns the network of a checkpoint without weights; `None` if a family has the network, or if it is too large to copy.
///
/// # Errors
/// - Input: the model is damaged.
/// - Io: a file cannot be read.
pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Option<Vec<u8>>> {
    match (checkpoint.onnx_file(), checkpoint.network_file()) {
        (Some(file), _) => network_of(file),
        (None, Some(file)) => file.read_all(MAX_NETWORK_BYTES).map(Some),
        (None, None) => Ok(None),
    }
}

/// Returns a network as a file of the output. An ONNX file that was given without its directory comes with the settings beside it.
///
/// # Errors
/// See [`of`].
pub(crate) fn files(checkpoint: &Checkpoint, network: Vec<u8>) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = settings(checkpoint)?;
    found.push((PathBuf::from(NETWORK_FILE), network));
    Ok(found)
}

/// Returns the settings beside an ONNX file that was given without its directory.
///
/// # Errors
/// - Input: a file is too large.
/// - Io: a file cannot be read.
pub(crate) fn settings(checkpoint: &Checkpoint) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in settings_beside(checkpoint) {
        let bytes = checkpoint.model_dir().read(name, limits::MAX_COMPANION_BYTES)?;
        found.extend(bytes.map(|bytes| (name.to_path_buf(), bytes)));
    }
    Ok(found)
}

/// Returns the names of the files with settings that may be beside an ONNX file that was given without its directory.
pub(crate) fn settings_beside(checkpoint: &Checkpoint) -> impl Iterator<Item = &Path> {
    let is_alone = checkpoint.onnx_file().is_some_and(|file| file.path() == checkpoint.path());
    SETTINGS.iter().map(|name| Path::new(*name)).filter(move |_| is_alone)
}
