//! Launches of kernels that expand sparse codes or convert codes to floats.

use super::{CodeWords, Floats, arg};
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use crate::int8::Int8;
use crate::stored::{DeviceBitmask, DeviceCodes};
use crate::{bitmask, decode};
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::CubeDim;

/// Returns the dense codes of weights: the stored codes, or a temporary expanded copy.
pub(crate) fn dense_words(weights: &Int8) -> DeviceBuffer {
    match &weights.kept {
        DeviceCodes::Dense(words) => words.clone(),
        DeviceCodes::Bitmask(blocks) => expand(weights.gpu(), blocks, weights.n_out(), weights.n_in()),
    }
}

/// Expands weights, including zeros, into temporary memory.
fn expand(gpu: &Gpu, blocks: &DeviceBitmask, n_out: usize, n_in: usize) -> DeviceBuffer {
    let row_words = crate::pack::row_words(n_in);
    let codes = CodeWords::empty(gpu, n_out, row_words);
    let row_blocks = n_in.div_ceil(bitmask::BLOCK_INPUTS);
    let n_blocks = n_out.div_ceil(bitmask::BLOCK_ROWS) * row_blocks;
    // SAFETY: one warp per block; only existing rows and words are written.
    unsafe {
        bitmask::expand::launch_unchecked(
            gpu.client(),
            cubes(groups(n_blocks, bitmask::BLOCKS), 1),
            CubeDim::new_2d(32, bitmask::BLOCKS as u32),
            arg(&blocks.bits, 4),
            arg(&blocks.values, 4),
            arg(&blocks.bases, 4),
            codes.arg(4),
            u32_of(n_out),
            u32_of(row_words / 4),
            u32_of(row_blocks),
            u32_of(n_blocks),
        );
    }
    codes.words
}

/// Converts weights `[n_out, n_in]` to floats, from codes of `bits` bits with a scale for each `group` of a
/// row.
pub(crate) fn decode(gpu: &Gpu, words: &DeviceBuffer, scales: &DeviceBuffer, group: usize, bits: usize, out: &Floats) {
    let n = out.n_rows * out.n_cols;
    let row_words = if bits == 8 { crate::pack::row_words(out.n_cols) } else { out.n_cols.div_ceil(8) };
    // SAFETY: one unit per weight.
    unsafe {
        decode::decode::launch_unchecked(
            gpu.client(),
            cubes(groups(n, decode::UNITS), 1),
            CubeDim::new_1d(decode::UNITS as u32),
            arg(words, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(out.n_rows),
            u32_of(out.n_cols),
            u32_of(row_words),
            u32_of(group),
            bits,
            out.dtype,
        );
    }
}

/// Row ids for a table lookup.
#[derive(Debug, Clone)]
pub struct Ids {
    /// The buffer of ids.
    pub buffer: DeviceBuffer,
    /// The integer type of the ids.
    pub dtype: ElemType,
}

impl Ids {
    /// Returns the number of ids.
    pub fn n(&self) -> usize {
        self.buffer.n_bytes() / self.dtype.size()
    }
}

/// Looks up rows of a table whose rows are whole words.
pub(crate) fn lookup(gpu: &Gpu, ids: &Ids, words: &DeviceBuffer, scales: &DeviceBuffer, n_rows: usize, out: &Floats) {
    // SAFETY: one cube per id, which reads an existing row.
    unsafe {
        decode::lookup::launch_unchecked(
            gpu.client(),
            cubes(ids.n(), 1),
            CubeDim::new_1d(decode::UNITS as u32),
            arg(&ids.buffer, ids.dtype.size()),
            arg(words, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(n_rows),
            u32_of(out.n_cols),
            u32_of(crate::pack::row_words(out.n_cols)),
            [ids.dtype, out.dtype],
        );
    }
}

/// Looks up rows of a sparse table.
pub(crate) fn lookup_bitmask(
    gpu: &Gpu,
    ids: &Ids,
    rows: &DeviceBitmask,
    scales: &DeviceBuffer,
    n_rows: usize,
    out: &Floats,
) {
    // SAFETY: one warp per id, which reads an existing row.
    unsafe {
        decode::lookup_bitmask::launch_unchecked(
            gpu.client(),
            cubes(ids.n(), 1),
            CubeDim::new_1d(32),
            arg(&ids.buffer, ids.dtype.size()),
            arg(&rows.bits, 4),
            arg(&rows.values, 4),
            arg(&rows.bases, 4),
            arg(scales, 4),
            out.arg(1),
            u32_of(n_rows),
            u32_of(out.n_cols),
            u32_of(out.n_cols.div_ceil(32)),
            [ids.dtype, out.dtype],
        );
    }
}
