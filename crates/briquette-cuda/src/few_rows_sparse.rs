//! Products of a few rows with sparse weights, which a warp expands in registers.

use crate::bitmask::{BLOCK_INPUTS, BLOCK_ROWS, sixteen_codes};
use crate::epilogue::{EpilogueFlags, OutputLayout, place, scaled, write};
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Warps per cube, which take turns with the blocks of a row.
pub const WARPS: usize = 4;
/// Units per warp.
const WARP: usize = 32;
/// Vectors of 16 codes per row of a block.
const STEP: usize = BLOCK_INPUTS / 16;

/// Multiplies rows of codes by rows of sparse weights up to `n_cols`, with dot products of four codes.
///
/// Cube `(blocks of outputs, rows)`; `rows` is the number of rows that are processed together, at most eight. The first
/// column begins a block.
#[cube(launch_unchecked)]
pub fn few_rows_sparse<F: Float>(
    a: &[Vector<u32, Const<4>>],
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
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
    let (lane, warp) = (UNIT_POS as usize % WARP, UNIT_POS as usize / WARP);
    let (n_rows, n_cols, row_vectors) = (n_rows as usize, n_cols as usize, row_vectors as usize);
    let first_row = CUBE_POS_Y as usize * rows;
    let first_col = layout.first_col as usize + CUBE_POS_X as usize * BLOCK_ROWS;
    let row_blocks = row_vectors.div_ceil(STEP);
    let mut sums = Array::<i32>::new(rows);
    #[unroll]
    for row in 0..rows {
        sums[row] = 0i32;
    }
    let mut step = warp;
    while step < row_blocks {
        let block = first_col / BLOCK_ROWS * row_blocks + step;
        let mask = bits[block * WARP + lane];
        sync_plane();
        let mut offset = bases[block] + plane_exclusive_sum(mask.count_ones());
        #[unroll]
        for half in 0..2usize {
            let of_half = (mask >> comptime!(half as u32 * 16)) & 0xffffu32;
            let weights = sixteen_codes(of_half, values, offset);
            offset += of_half.count_ones();
            // After the last input there are no bits.
            let vector = min(step * STEP + lane % 2 * 2 + half, row_vectors - 1);
            #[unroll]
            for row in 0..rows {
                let codes = a[min(first_row + row, n_rows - 1) * row_vectors + vector];
                #[unroll]
                for word in 0..4usize {
                    let (x, w) = (i32::reinterpret(codes.extract(word)), i32::reinterpret(weights.extract(word)));
                    sums[row] = dp4a(x, w, sums[row]);
                }
            }
        }
        step += WARPS;
    }
    let mut shared = Shared::<[i32]>::new_slice(comptime!(8 * WARPS * WARP));
    #[unroll]
    for row in 0..rows {
        shared[(row * WARPS + warp) * WARP + lane] = sums[row];
    }
    sync_cube();
    let (row, output) = (UNIT_POS as usize / BLOCK_ROWS, UNIT_POS as usize % BLOCK_ROWS);
    let col = first_col + output;
    if row < rows && first_row + row < n_rows && col < n_cols {
        let mut sum = 0i32;
        #[unroll]
        for warp in 0..WARPS {
            let at = (row * WARPS + warp) * WARP + output * 2;
            sum += shared[at] + shared[at + 1];
        }
        let (image, first) = place(&layout, first_row + row);
        let value = scaled(sum, row_zeros[image], row_scales[image], col_sums[col], col_scales[col]);
        write::<F>(value, col, first, scale, shift, y, &layout, epilogue);
    }
}
