//! The description of one format.

use super::file_part::FilePart;
use super::held_codes::CodeSupport;
use crate::{TensorInfo, WeightLayout};
use briquette_core::{Coding, OutputAxis, Result};
use std::collections::BTreeMap;

/// The properties of a format.
pub(super) struct FormatRow {
    /// The name in recipes and manifests, and on the command line.
    pub(super) name: &'static str,
    /// The extension of weight files.
    pub(super) extension: &'static str,
    /// The container of weight files.
    pub(super) container: Container,
    /// Whether there may be several weight files.
    pub(super) shards: Shards,
    /// Whether tensors may be stored as sparse.
    pub(super) is_sparse: bool,
    /// Whether tied tensors are stored once. Otherwise each is stored under its own name for other programs.
    pub(super) ties: bool,
    /// The codes that the format supports; `None` if it only has floats.
    pub(super) codes: Option<CodeSupport>,
    /// Whether transformers loads the format, with the codes described in `config.json`.
    pub(super) is_for_transformers: bool,
    /// Returns the tensors of a file that store a tensor of the model.
    pub(super) file_parts: FilePartsOf,
}

/// See [`OutputFormat::file_parts`](super::OutputFormat::file_parts).
type FilePartsOf = fn(&TensorInfo, OutputAxis, Coding, usize, Option<&str>) -> Result<Vec<FilePart>>;
/// Returns the header of a file and the offset of each tensor, from the model's strings and weight layout.
pub type WriteHeader = fn(&[TensorInfo], &BTreeMap<String, String>, WeightLayout) -> Result<(Vec<u8>, Vec<u64>)>;

/// How a weight file begins.
#[derive(Debug, Clone, Copy)]
pub enum Container {
    /// A safetensors header, written tensor by tensor.
    Safetensors(HeaderStrings),
    /// A header made from all tensors of the file, which are sorted by element size, widest first.
    Listed(WriteHeader),
    /// A copy of the model's file, in which each tensor keeps its place and size.
    InPlace,
}

/// The free-form strings of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStrings {
    /// A marker that other programs do not recognize, and the meanings of the parts.
    Meanings,
    /// The strings of the original model, and the string that transformers expects.
    OfModel,
}

/// Whether weights may be in several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shards {
    /// One file: the format has no index.
    One,
    /// Several files, which the manifest lists.
    Named,
    /// Several files, which an index lists for other programs.
    Indexed,
}
