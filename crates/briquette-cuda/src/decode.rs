//! Conversion of codes to floats: rows of a table, or all weights of a layer.

use crate::few_rows::float_of;
use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;

/// Computes `out[t, c] = codes[ids[t], c] * scales[ids[t]]`, one cube per id. An invalid id gives a row of NaN.
#[cube(launch_unchecked)]
pub fn lookup<I: Int, F: Float>(
    ids: &[I],
    codes: &[u32],
    scales: &[f32],
    out: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_words: u32,
    #[define(I, F)] _types: [ElemType; 2],
) {
    let at = CUBE_POS_X as usize;
    let (row, is_row) = row_of::<I>(ids[at], n_rows);
    let scale = scale_of(scales, row, is_row);
    let mut col = UNIT_POS as usize;
    while col < n_cols as usize {
        let word = codes[row * row_words as usize + col / 4] ^ 0x8080_8080u32;
        let code = (word >> ((col % 4) as u32 * 8u32)) & 0xffu32;
        out[at * n_cols as usize + col] = F::cast_from(float_of(code, 128.0f32) * scale);
        col += UNITS;
    }
}

/// Like [`lookup()`] for sparse rows, one warp per id.
///
/// A row has one bit per code, in whole words, and one byte per nonzero code, starting at `bases[row]`.
#[cube(launch_unchecked)]
pub fn lookup_bitmask<I: Int, F: Float>(
    ids: &[I],
    bits: &[u32],
    values: &[u32],
    bases: &[u32],
    scales: &[f32],
    out: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_masks: u32,
    #[define(I, F)] _types: [ElemType; 2],
) {
    let (at, lane) = (CUBE_POS_X as usize, UNIT_POS as usize);
    let (n_cols, row_masks) = (n_cols as usize, row_masks as usize);
    let (row, is_row) = row_of::<I>(ids[at], n_rows);
    let scale = scale_of(scales, row, is_row);
    let mut base = bases[row];
    let mut first = 0usize;
    while first < row_masks {
        let mut mask = 0u32;
        if first + lane < row_masks {
            mask = bits[row * row_masks + first + lane];
        }
        sync_plane();
        let n = mask.count_ones();
        let mut offset = base + plane_exclusive_sum(n);
        base += plane_sum(n);
        #[unroll]
        for i in 0..32usize {
            let col = (first + lane) * 32 + i;
            let mut value = 0.0f32;
            if (mask >> comptime!(i as u32)) & 1u32 == 1u32 {
                let code = (values[(offset / 4u32) as usize] >> (offset % 4u32 * 8u32)) & 0xffu32;
                value = float_of(code ^ 0x80u32, 128.0f32);
                offset += 1u32;
            }
            if col < n_cols {
                out[at * n_cols + col] = F::cast_from(value * scale);
            }
        }
        first += 32usize;
    }
}

/// Converts all weights `[n_rows, n_cols]` to floats, one unit per weight.
///
/// Codes have 8 or 4 bits and a scale for each `group` of a row.
#[cube(launch_unchecked)]
pub fn decode<F: Float>(
    codes: &[u32],
    scales: &[f32],
    out: &mut [F],
    n_rows: u32,
    n_cols: u32,
    row_words: u32,
    group: u32,
    #[comptime] bits: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    let (n_rows, n_cols) = (n_rows as usize, n_cols as usize);
    if at < n_rows * n_cols {
        let (row, col) = (at / n_cols, at % n_cols);
        let per_word = comptime!(32 / bits);
        let word = codes[row * row_words as usize + col / per_word];
        let code = (word >> ((col % per_word) as u32 * comptime!(bits as u32))) & comptime!((1u32 << bits as u32) - 1);
        let scale = scales[row * n_cols.div_ceil(group as usize) + col / group as usize];
        // int8 codes are signed; 4-bit codes are stored with 8 added.
        let flip = comptime!(if bits == 8 { 0x80u32 } else { 0 });
        let offset = comptime!(if bits == 8 { 128.0f32 } else { 8.0 });
        out[at] = F::cast_from(float_of(code ^ flip, offset) * scale);
    }
}

/// Returns the row of an id and true, or row 0 and false if there is no such row.
#[cube]
fn row_of<I: Int>(id: I, n_rows: u32) -> (usize, bool) {
    let id = i64::cast_from(id);
    let is_row = id >= 0i64 && id < i64::cast_from(n_rows);
    (select(is_row, u32::cast_from(id), 0u32) as usize, is_row)
}

#[cube]
fn scale_of(scales: &[f32], row: usize, is_row: bool) -> f32 {
    let mut scale = f32::reinterpret(0x7fc0_0000u32);
    if is_row {
        scale = scales[row];
    }
    scale
}
