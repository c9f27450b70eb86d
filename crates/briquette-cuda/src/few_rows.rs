//! Products of a few rows, which are limited by reading the weights. A warp computes some outputs of each row.

use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write, write_at};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Warps per cube.
pub const WARPS: usize = 4;
/// Outputs per warp.
pub const OUTPUTS: usize = 4;
/// Units per warp.
const WARP: usize = 32;

/// Multiplies rows of codes by rows of weights up to `n_cols`, with dot products of four codes.
///
/// Cube `(outputs, rows)`; `rows` is the number of rows that are processed together.
#[cube(launch_unchecked)]
pub fn few_rows_codes<F: Float>(
    a: &[Vector<u32, Const<4>>],
    b: &[Vector<u32, Const<4>>],
    row_scales: &[f32],
    row_zeros: &[i32],
    col_sums: &[i32],
    col_scales: &[f32],
    scale: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_vectors: u32,
    layout: OutputLayout,
    #[comptime] rows: usize,
    #[comptime] epilogue: EpilogueFlags,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, n_cols, row_vectors) = (n_rows as usize, n_cols as usize, row_vectors as usize);
    let (first_row, first_col) = (CUBE_POS_Y as usize * rows, layout.first_col as usize + first_output());
    let mut sums = Array::<i32>::new(comptime!(rows * OUTPUTS));
    #[unroll]
    for i in 0..comptime!(rows * OUTPUTS) {
        sums[i] = 0i32;
    }
    let mut vector = lane;
    while vector < row_vectors {
        let mut weights = Array::<Vector<u32, Const<4>>>::new(OUTPUTS);
        #[unroll]
        for col in 0..OUTPUTS {
            weights[col] = b[min(first_col + col, n_cols - 1) * row_vectors + vector];
        }
        #[unroll]
        for row in 0..rows {
            let codes = a[min(first_row + row, n_rows - 1) * row_vectors + vector];
            #[unroll]
            for at in 0..comptime!(OUTPUTS * 4) {
                let sum = comptime!(row * OUTPUTS + at / 4);
                let of_weights = i32::reinterpret(weights[comptime!(at / 4)].extract(comptime!(at % 4)));
                sums[sum] = dp4a(i32::reinterpret(codes.extract(comptime!(at % 4))), of_weights, sums[sum]);
            }
        }
        vector += WARP;
    }
    sync_plane();
    #[unroll]
    for i in 0..rows {
        #[unroll]
        for j in 0..OUTPUTS {
            let sum = plane_sum(sums[comptime!(i * OUTPUTS + j)]);
            let (row, col) = (first_row + i, first_col + j);
            if lane == 0 && row < n_rows && col < n_cols {
                let (image, first) = place(&layout, row);
                let value = scaled(sum, row_zeros[image], row_scales[image], col_sums[col], col_scales[col]);
                write::<F>(value, col, first, scale, shift, y, &layout, epilogue);
            }
        }
    }
}

/// Multiplies rows of floats by rows of int8 weights with a scale for each output: cube `(outputs, rows)`.
///
/// The number of inputs is a multiple of four. A row of weights has `row_vectors` vectors of 16 codes, the last of which
/// may have more than the inputs.
#[cube(launch_unchecked)]
pub fn few_rows_int8<F: Float>(
    x: &[Vector<F, Const<4>>],
    b: &[Vector<u32, Const<4>>],
    col_scales: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_quads: u32,
    row_vectors: u32,
    #[comptime] rows: usize,
    #[comptime] has_shift: bool,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, n_cols, row_vectors) = (n_rows as usize, n_cols as usize, row_vectors as usize);
    let row_quads = row_quads as usize;
    let (first_row, first_col) = (CUBE_POS_Y as usize * rows, first_output());
    let mut sums = zeros(comptime!(rows * OUTPUTS));
    let mut vector = lane;
    while vector < row_vectors {
        let mut codes = Array::<Vector<u32, Const<4>>>::new(OUTPUTS);
        #[unroll]
        for col in 0..OUTPUTS {
            codes[col] = b[min(first_col + col, n_cols - 1) * row_vectors + vector];
        }
        #[unroll]
        for part in 0..4usize {
            let quad = vector * 4 + part;
            if quad < row_quads {
                #[unroll]
                for row in 0..rows {
                    let of_row = x[min(first_row + row, n_rows - 1) * row_quads + quad];
                    let values = Vector::<f32, Const<4>>::cast_from(of_row);
                    #[unroll]
                    for at in 0..comptime!(OUTPUTS * 4) {
                        let word = codes[comptime!(at / 4)].extract(part) ^ 0x8080_8080u32;
                        let weight = float_of((word >> comptime!((at % 4) as u32 * 8)) & 0xffu32, 128.0f32);
                        sums[comptime!(row * OUTPUTS + at / 4)] += values.extract(comptime!(at % 4)) * weight;
                    }
                }
            }
        }
        vector += WARP;
    }
    #[unroll]
    for j in 0..OUTPUTS {
        let scale = col_scales[min(first_col + j, n_cols - 1)];
        #[unroll]
        for i in 0..rows {
            sums[comptime!(i * OUTPUTS + j)] *= scale;
        }
    }
    write_floats::<F>(&sums, first_row, first_col, n_rows, n_cols, shift, y, rows, has_shift);
}

/// Multiplies rows of floats by rows of int4 weights: cube `(outputs, rows)`.
///
/// Each `group` inputs of an output have a scale. The group size and the number of inputs are multiples of
/// eight. A row has `row_words` words of eight codes.
#[cube(launch_unchecked)]
pub fn few_rows_int4<F: Float>(
    x: &[Vector<F, Const<4>>],
    b: &[u32],
    scales: &[f32],
    shift: &[f32],
    y: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_words: u32,
    group_words: u32,
    #[comptime] rows: usize,
    #[comptime] has_shift: bool,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, n_cols, row_words) = (n_rows as usize, n_cols as usize, row_words as usize);
    let n_groups = row_words.div_ceil(group_words as usize);
    let (first_row, first_col) = (CUBE_POS_Y as usize * rows, first_output());
    let mut sums = zeros(comptime!(rows * OUTPUTS));
    let mut word = lane;
    while word < row_words {
        #[unroll]
        for j in 0..OUTPUTS {
            let col = min(first_col + j, n_cols - 1);
            let weights = b[col * row_words + word];
            let scale = scales[col * n_groups + word / group_words as usize];
            #[unroll]
            for i in 0..rows {
                let at = (min(first_row + i, n_rows - 1) * row_words + word) * 2;
                let mut sum = 0.0f32;
                #[unroll]
                for half in 0..2usize {
                    let values = Vector::<f32, Const<4>>::cast_from(x[at + half]);
                    #[unroll]
                    for k in 0..4usize {
                        let code = (weights >> comptime!((half * 4 + k) as u32 * 4)) & 15u32;
                        sum += values.extract(k) * float_of(code, 8.0f32);
                    }
                }
                sums[comptime!(i * OUTPUTS + j)] += sum * scale;
            }
        }
        word += WARP;
    }
    write_floats::<F>(&sums, first_row, first_col, n_rows, n_cols, shift, y, rows, has_shift);
}

/// Returns the first output of a warp.
#[cube]
fn first_output() -> usize {
    (CUBE_POS_X as usize * WARPS + UNIT_POS as usize / WARP) * OUTPUTS
}

/// Adds the partial sums of a warp's lanes and writes the total, plus `shift` if there is one.
#[cube]
fn write_floats<F: Float>(
    sums: &Array<f32>,
    first_row: usize,
    first_col: usize,
    n_rows: usize,
    n_cols: usize,
    shift: &[f32],
    y: &mut [F],
    #[comptime] rows: usize,
    #[comptime] has_shift: bool,
) {
    let lane = UNIT_POS as usize % WARP;
    sync_plane();
    #[unroll]
    for i in 0..rows {
        #[unroll]
        for j in 0..OUTPUTS {
            let sum = plane_sum(sums[comptime!(i * OUTPUTS + j)]);
            let (row, col) = (first_row + i, first_col + j);
            if lane == 0 && row < n_rows && col < n_cols {
                let epilogue = comptime!(EpilogueFlags { shift: has_shift, scale: false, adds: false, relu: false });
                write_at::<F>(sum, col, row * n_cols + col, shift, shift, y, epilogue);
            }
        }
    }
}

#[cube]
fn zeros(#[comptime] n: usize) -> Array<f32> {
    let mut sums = Array::<f32>::new(n);
    #[unroll]
    for i in 0..n {
        sums[i] = 0.0f32;
    }
    sums
}

/// Returns `code - offset` as a float. The code becomes the low bits of the mantissa of 2^23, which is faster
/// than a conversion.
#[cube]
pub(crate) fn float_of(code: u32, offset: f32) -> f32 {
    f32::reinterpret(code | 0x4b00_0000u32) - (8388608.0f32 + offset)
}
