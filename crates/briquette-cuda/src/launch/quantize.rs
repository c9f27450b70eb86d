//! Launches of kernels that quantize activations.

use super::{CodeWords, Floats, RowScales, arg};
use crate::gpu::{DeviceBuffer, Gpu, cubes, groups, u32_of};
use crate::quantize_rows;
use cubecl_core::prelude::CubeDim;

/// Rows with at most this many values are quantized by a warp each.
const NARROW: usize = 2048;
/// Rows with more values are quantized in parts, in parallel.
const WIDE: usize = 1 << 16;
/// Values per part of a wide row.
const PART: usize = 1 << 14;

/// Quantizes each row separately, into rows of `row_words` words.
pub(crate) fn quantize(gpu: &Gpu, x: &Floats, row_words: usize, symmetric: bool) -> (CodeWords, RowScales) {
    let (codes, rows) = parts_of(&gpu.empty::<u32>(coded_words(x.n_rows, row_words)), x.n_rows, row_words);
    quantize_into(gpu, x, &codes, &rows, symmetric);
    (codes, rows)
}

/// Returns the words of quantized rows: codes, then scales, then zero points.
pub(crate) const fn coded_words(n_rows: usize, row_words: usize) -> usize {
    n_rows * (row_words + 2)
}

/// Returns the codes and the scales in a buffer of [`coded_words`].
pub(crate) fn parts_of(coded: &DeviceBuffer, n_rows: usize, row_words: usize) -> (CodeWords, RowScales) {
    let n_bytes = 4 * n_rows * row_words;
    let words = coded.part(0, n_bytes);
    let [scales, zeros] = [0, 1].map(|at| coded.part(n_bytes + at * 4 * n_rows, 4 * n_rows));
    (CodeWords { words, n_rows, row_words }, RowScales { scales, zeros })
}

/// Quantizes each row into existing codes and scales.
pub(crate) fn quantize_into(gpu: &Gpu, x: &Floats, codes: &CodeWords, rows: &RowScales, symmetric: bool) {
    let row_words = codes.row_words;
    if x.n_rows == 0 {
        return;
    }
    if x.n_cols <= NARROW {
        // SAFETY: one warp per row; `codes`, `scales` and `zeros` have as many rows.
        unsafe {
            quantize_rows::quantize_narrow_rows::launch_unchecked(
                gpu.client(),
                cubes(groups(x.n_rows, quantize_rows::WARPS), 1),
                CubeDim::new_1d(quantize_rows::UNITS as u32),
                lanes(x),
                x.arg(lanes(x)),
                codes.arg(1),
                arg(&rows.scales, 4),
                arg(&rows.zeros, 4),
                u32_of(x.n_rows),
                u32_of(x.n_cols),
                u32_of(row_words),
                symmetric,
                x.dtype,
            );
        }
    } else if x.n_cols <= WIDE {
        // SAFETY: one cube per row; `codes`, `scales` and `zeros` have as many rows.
        unsafe {
            quantize_rows::quantize_rows::launch_unchecked(
                gpu.client(),
                cubes(x.n_rows, 1),
                CubeDim::new_1d(quantize_rows::UNITS as u32),
                lanes(x),
                x.arg(lanes(x)),
                codes.arg(1),
                arg(&rows.scales, 4),
                arg(&rows.zeros, 4),
                u32_of(x.n_cols),
                u32_of(row_words),
                symmetric,
                x.dtype,
            );
        }
    } else {
        quantize_parts(gpu, x, codes, rows, symmetric);
    }
}

/// Returns the size of the vectors that rows consist of.
const fn lanes(x: &Floats) -> usize {
    if x.n_cols.is_multiple_of(4) { 4 } else { 1 }
}

/// Quantizes wide rows from the value ranges of their parts.
fn quantize_parts(gpu: &Gpu, x: &Floats, codes: &CodeWords, rows: &RowScales, symmetric: bool) {
    let (client, dim) = (gpu.client(), CubeDim::new_1d(quantize_rows::UNITS as u32));
    let [n_cols, words] = [x.n_cols, codes.row_words].map(u32_of);
    let n_parts = x.n_cols.div_ceil(PART);
    let [least, most] = [(); 2].map(|()| gpu.empty::<f32>(x.n_rows * n_parts));
    let magnitude = gpu.empty::<u32>(x.n_rows * n_parts);
    let inverses = gpu.empty::<f32>(x.n_rows);
    let n_words = x.n_rows * codes.row_words;
    // SAFETY: one range per part of each row, then one scale per row, then one unit per word of codes.
    unsafe {
        quantize_rows::spans::launch_unchecked(
            client,
            cubes(n_parts, x.n_rows),
            dim,
            lanes(x),
            x.arg(lanes(x)),
            arg(&least, 4),
            arg(&most, 4),
            arg(&magnitude, 4),
            n_cols,
            PART as u32,
            x.dtype,
        );
        quantize_rows::row_scales::launch_unchecked(
            client,
            cubes(groups(x.n_rows, quantize_rows::UNITS), 1),
            dim,
            arg(&least, 4),
            arg(&most, 4),
            arg(&magnitude, 4),
            arg(&rows.scales, 4),
            arg(&inverses, 4),
            arg(&rows.zeros, 4),
            u32_of(x.n_rows),
            u32_of(n_parts),
            symmetric,
        );
        quantize_rows::encode::launch_unchecked(
            client,
            cubes(groups(n_words, quantize_rows::UNITS), 1),
            dim,
            lanes(x),
            x.arg(lanes(x)),
            arg(&rows.scales, 4),
            arg(&inverses, 4),
            arg(&rows.zeros, 4),
            codes.arg(1),
            n_cols,
            words,
            u32_of(n_words),
            x.dtype,
        );
    }
}
