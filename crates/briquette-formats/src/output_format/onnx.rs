//! ONNX: the model's own files, with other values in its initializers.

use super::file_part::own_parts;
use super::row::{Container, FormatRow, Shards};

/// Floats in the types of the model, and a copy of everything else.
pub(super) const ROW: FormatRow = FormatRow {
    name: "onnx",
    extension: "onnx",
    container: Container::InPlace,
    shards: Shards::One,
    is_sparse: false,
    ties: false,
    codes: None,
    is_for_transformers: false,
    file_parts: own_parts,
};
