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
    /// The codes it holds; none where it holds floats only.
    pub(super) codes: Option<CodeSupport>,
    /// Whether transformers is to load it, whose config tells of the codes.
    pub(super) is_for_transformers: bool,
    /// The tensors of a file that stand for one of the model.
    pub(super) file_parts: FilePartsOf,
}

/// As [`OutputFormat::file_parts`](super::OutputFormat::file_parts).
type FilePartsOf = fn(&TensorInfo, OutputAxis, Coding, usize, Option<&str>) -> Result<Vec<FilePart>>;
/// The first bytes of a file of these tensors and where each of them starts, given the free-form strings of the model and which way
/// its matrices lie.
pub type WriteHeader = fn(&[TensorInfo], &BTreeMap<String, String>, WeightLayout) -> Result<(Vec<u8>, Vec<u64>)>;

/// How a weight file begins.
#[derive(Debug, Clone, Copy)]
pub enum Container {
    /// With a header of safetensors, made as tensors come.
    Safetensors(HeaderStrings),
    /// With one that is made of all tensors of the file at once, widest elements first.
    Listed(WriteHeader),
}

/// The free-form strings of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStrings {
    /// A word that other programs will not take for theirs, and what parts stand for.
    Meanings,
    /// Those of the model, and what transformers looks for.
    OfModel,
}

/// Whether weights may be in several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shards {
    /// No: nothing would tell which.
    One,
    /// The manifest says which.
    Named,
    /// An index says it to other programs.
    Indexed,
}
