//! Our own format: what takes the fewest bytes.

use super::file_part::own_parts;
use super::held_codes::CodeSupport;
use super::row::{Container, FormatRow, HeaderStrings, Shards};

/// Every coding as it is, tied tensors once, and a header that explains itself.
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
