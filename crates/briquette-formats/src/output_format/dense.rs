//! Plain safetensors, for all other programs.

use super::file_part::own_parts;
use super::row::{Container, FormatRow, HeaderStrings, Shards};

/// Floats only, with the names of Hugging Face.
pub(super) const ROW: FormatRow = FormatRow {
    name: "dense",
    extension: "safetensors",
    container: Container::Safetensors(HeaderStrings::OfModel),
    shards: Shards::Indexed,
    is_sparse: false,
    ties: false,
    codes: None,
    is_for_transformers: false,
    file_parts: own_parts,
};
