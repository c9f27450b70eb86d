//! int8 products with dot products of four codes, for devices without int8 matrix instructions.
//!
//! They are also the reference for the matrix instructions in tests.

use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;

/// Multiplies rows of codes by rows of weights up to `n_cols`, one unit per output.
///
/// A row has `row_words` words of four codes.
#[cube(launch_unchecked)]
pub fn product_dp4a<F: Float>(
    a: &[u32],
    b: &[u32],
    row_scales: &[f32],
    row_zeros: &[i32],
    col_sums: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_words: u32,
    layout: OutputLayout,
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    let row_words = row_words as usize;
    let width = (n_cols - layout.first_col) as usize;
    if at < n_rows as usize * width {
        let (row, col) = (at / width, layout.first_col as usize + at % width);
        let mut sum = 0i32;
        for word in 0..row_words {
            let codes = i32::reinterpret(a[row * row_words + word]);
            sum = dp4a(codes, i32::reinterpret(b[col * row_words + word]), sum);
        }
        let (image, first) = place(&layout, row);
        let value = scaled(sum, row_zeros[image], row_scales[image], col_sums[col], col_scales[col]);
        write::<F>(value, col, first, scale, shift, y, &layout, epilogue);
    }
}
