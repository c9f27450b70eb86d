//! Launches of kernels for products of a few rows.

use super::{Floats, Product, arg};
use crate::bitmask::BLOCK_ROWS;
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use crate::int8::Int8;
use crate::stored::DeviceBitmask;
use crate::{few_rows, few_rows_sparse as sparse};
use cubecl_core::prelude::{CubeCount, CubeDim};

/// The most rows of floats that are multiplied by codes directly; for more, the weights are converted to floats
/// first.
pub(crate) const FEW_FLOATS: usize = 15;

/// Returns the number of rows that a kernel for few rows processes together.
fn rows_at_once(n_rows: usize) -> usize {
    n_rows.next_power_of_two().min(8)
}

/// Returns the grid of a kernel for few rows.
fn few_rows_cubes(n_rows: usize, n_out: usize, rows: usize) -> CubeCount {
    cubes(groups(n_out, few_rows::WARPS * few_rows::OUTPUTS), groups(n_rows, rows))
}

/// Multiplies a few rows of codes by dense weights.
pub(crate) fn few_rows_codes(gpu: &Gpu, product: &Product, words: &DeviceBuffer, y: &Floats) {
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    let rows = rows_at_once(codes.n_rows);
    // SAFETY: for rows and columns beyond the last, the last is read and nothing is written.
    unsafe {
        few_rows::few_rows_codes::launch_unchecked(
            gpu.client(),
            few_rows_cubes(codes.n_rows, product.n_cols(), rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            codes.arg(4),
            arg(words, 16),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words / 4),
            product.place.launch(),
            rows,
            product.epilogue.flags(),
            y.dtype,
        );
    }
}

/// Multiplies a few rows of codes by sparse weights. The first column begins a block.
pub(crate) fn few_rows_sparse(gpu: &Gpu, product: &Product, blocks: &DeviceBitmask, y: &Floats) {
    let codes = product.codes;
    let [row_scales, zeros, sums, scales, scale, shift] = product.args();
    assert!(product.place.first_col.is_multiple_of(BLOCK_ROWS), "column {}", product.place.first_col);
    let rows = rows_at_once(codes.n_rows);
    // SAFETY: for rows beyond the last, the last is read; beyond the last row and column nothing is written.
    unsafe {
        sparse::few_rows_sparse::launch_unchecked(
            gpu.client(),
            cubes(groups(product.n_cols(), BLOCK_ROWS), groups(codes.n_rows, rows)),
            CubeDim::new_2d(32, sparse::WARPS as u32),
            codes.arg(4),
            arg(&blocks.bits, 4),
            arg(&blocks.values, 4),
            arg(&blocks.bases, 4),
            row_scales,
            zeros,
            sums,
            scales,
            scale,
            shift,
            y.arg(1),
            u32_of(codes.n_rows),
            u32_of(product.place.end_col),
            u32_of(codes.row_words / 4),
            product.place.launch(),
            rows,
            product.epilogue.flags(),
            y.dtype,
        );
    }
}

/// Multiplies a few rows of floats by dense int8 weights; the number of inputs is a multiple of four.
pub(crate) fn few_rows_int8(
    gpu: &Gpu,
    x: &Floats,
    weights: &Int8,
    words: &DeviceBuffer,
    shift: Option<&DeviceBuffer>,
    y: &Floats,
) {
    assert!(x.n_cols == weights.n_in() && x.n_cols.is_multiple_of(4), "{} inputs", x.n_cols);
    let rows = rows_at_once(x.n_rows);
    // SAFETY: for rows and columns beyond the last, the last is read and nothing is written.
    unsafe {
        few_rows::few_rows_int8::launch_unchecked(
            gpu.client(),
            few_rows_cubes(x.n_rows, weights.n_out(), rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            x.arg(4),
            arg(words, 16),
            arg(&weights.scales, 4),
            arg(shift.unwrap_or(&weights.scales), 4),
            y.arg(1),
            u32_of(x.n_rows),
            u32_of(weights.n_out()),
            u32_of(x.n_cols / 4),
            u32_of(weights.row_words() / 4),
            rows,
            shift.is_some(),
            y.dtype,
        );
    }
}

/// Multiplies a few rows of floats by int4 weights; the group size and the number of inputs are multiples of
/// eight.
pub(crate) fn few_rows_int4(
    gpu: &Gpu,
    x: &Floats,
    [words, scales]: [&DeviceBuffer; 2],
    group: usize,
    shift: Option<&DeviceBuffer>,
    y: &Floats,
) {
    assert!(x.n_cols.is_multiple_of(8) && group.is_multiple_of(8), "{} inputs by {group}", x.n_cols);
    let rows = rows_at_once(x.n_rows);
    // SAFETY: for rows and columns beyond the last, the last is read and nothing is written.
    unsafe {
        few_rows::few_rows_int4::launch_unchecked(
            gpu.client(),
            few_rows_cubes(x.n_rows, y.n_cols, rows),
            CubeDim::new_2d(32, few_rows::WARPS as u32),
            x.arg(4),
            arg(words, 4),
            arg(scales, 4),
            arg(shift.unwrap_or(scales), 4),
            y.arg(1),
            u32_of(x.n_rows),
            u32_of(y.n_cols),
            u32_of(x.n_cols / 8),
            u32_of(group / 8),
            rows,
            shift.is_some(),
            y.dtype,
        );
    }
}
