//! Conversion of sums from another library's kernel to outputs.

use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;

/// Computes outputs from the sums `[n_rows, n_cols]` of codes, one unit each.
#[cube(launch_unchecked)]
pub fn finish_sums<F: Float>(
    sums: &[i32],
    row_scales: &[f32],
    row_zeros: &[i32],
    col_sums: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    layout: OutputLayout,
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    let width = n_cols as usize;
    if at < n_rows as usize * width {
        let (row, col) = (at / width, at % width);
        let (image, first) = place(&layout, row);
        let value = scaled(sums[at], row_zeros[image], row_scales[image], col_sums[col], col_scales[col]);
        write::<F>(value, col, first, scale, shift, y, &layout, epilogue);
    }
}
