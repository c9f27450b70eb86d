//! Briquette's own format, which needs the fewest bytes.

use super::file_part::own_parts;
use super::held_codes::CodeSupport;
use super::row::{Container, FormatRow, HeaderStrings, Shards};

/// All codings, tied tensors once, and a self-describing header.
pub(super) const ROW: FormatRow = FormatRow {
    name: "briquette",
    extension: "briquette.safetensors",
    container: Container::Safetensors(HeaderStrings::Meanings),
    shards: Shards::Named,
    is_sparse: true,
    ties: true,
    codes: Some(CodeSupport::ALL),
    is_for_transformers: false,
    file_parts: own_parts,
};
