//! burn's burnpack.

use super::file_part::own_parts;
use super::row::{Container, FormatRow, Shards};
use crate::{TensorInfo, WeightLayout, burnpack, weight_layout};
use briquette_core::Result;
use std::collections::BTreeMap;

/// Floats only, in one file.
pub(super) const ROW: FormatRow = FormatRow {
    name: "burnpack",
    extension: "bpk",
    container: Container::Listed(write_header),
    shards: Shards::One,
    is_sparse: false,
    ties: false,
    codes: None,
    is_for_transformers: false,
    file_parts: own_parts,
};

fn write_header(
    tensors: &[TensorInfo],
    strings: &BTreeMap<String, String>,
    layout: WeightLayout,
) -> Result<(Vec<u8>, Vec<u64>)> {
    let mut strings = strings.clone();
    // The string that programs read in safetensors files has no meaning here.
    strings.remove("format");
    strings.insert(weight_layout::KEY.into(), layout.name().into());
    burnpack::write_header(tensors, &strings)
}
