//! Quantization of activations to 8-bit codes, with a scale and a zero point for each row.
//!
//! Codes and zero points are those of `briquette-cpu` minus 128, so that they are signed. For rows as wide as
//! images, the ranges of their parts are computed first, to use the whole device. Values are read as vectors of one or four.

use cubecl_core as cubecl;
use cubecl_core::ir::ElemType;
use cubecl_core::prelude::*;

/// Units of a cube.
pub const UNITS: usize = 256;
/// Units of a warp.
const WARP: usize = 32;
/// Rows of a cube that has a warp for each row.
pub const WARPS: usize = UNITS / WARP;

/// The bits of infinity; NaN has larger bits.
const INFINITY: u32 = 0x7f80_0000;

/// The value range that determines a scale: minimum, maximum and bits of the largest magnitude. It always
/// includes 0.
#[derive(CubeType, Clone, Copy)]
struct Span {
    least: f32,
    most: f32,
    magnitude: u32,
}

/// The mapping of a row's values to codes.
#[derive(CubeType, Clone, Copy)]
struct RowScale {
    scale: f32,
    zero: i32,
    /// `1 / scale`; infinite if the scale is too small, in which case codes are computed by division.
    inverse: f32,
}

/// Quantizes one row per cube.
#[cube(launch_unchecked)]
pub fn quantize_rows<F: Float, N: Size>(
    x: &[Vector<F, N>],
    codes: &mut [u32],
    scales: &mut [f32],
    zeros: &mut [i32],
    n_cols: u32,
    row_words: u32,
    #[comptime] symmetric: bool,
    #[define(F)] _dtype: ElemType,
) {
    let (row, n_cols, row_words) = (CUBE_POS_X as usize, n_cols as usize, row_words as usize);
    let (start, n_vectors) = (row * (n_cols / N::value()), n_cols / N::value());
    let span = span_of::<F, N>(x, start, start + n_vectors);
    let found = scale_of(span.least, span.most, span.magnitude, symmetric);
    if UNIT_POS == 0 {
        scales[row] = found.scale;
        zeros[row] = found.zero;
    }
    let mut word = UNIT_POS as usize;
    while word < row_words {
        codes[row * row_words + word] = word_of::<F, N>(x, start, word, n_cols, found.scale, found.inverse, found.zero);
        word += UNITS;
    }
}

/// Quantizes one row per warp, which is faster for narrow rows.
#[cube(launch_unchecked)]
pub fn quantize_narrow_rows<F: Float, N: Size>(
    x: &[Vector<F, N>],
    codes: &mut [u32],
    scales: &mut [f32],
    zeros: &mut [i32],
    n_rows: u32,
    n_cols: u32,
    row_words: u32,
    #[comptime] symmetric: bool,
    #[define(F)] _dtype: ElemType,
) {
    let lane = UNIT_POS as usize % WARP;
    let (n_rows, n_cols, row_words) = (n_rows as usize, n_cols as usize, row_words as usize);
    let row = CUBE_POS_X as usize * WARPS + UNIT_POS as usize / WARP;
    // Warps after the last row read it again, because a maximum over a warp needs all of its threads.
    let (start, n_vectors) = (min(row, n_rows - 1) * (n_cols / N::value()), n_cols / N::value());
    let span = span_in::<F, N>(x, start + lane, start + n_vectors, WARP);
    sync_plane();
    let (least, most) = (plane_min(span.least), plane_max(span.most));
    let found = scale_of(least, most, plane_max(span.magnitude), symmetric);
    if row < n_rows {
        if lane == 0 {
            scales[row] = found.scale;
            zeros[row] = found.zero;
        }
        let mut word = lane;
        while word < row_words {
            codes[row * row_words + word] =
                word_of::<F, N>(x, start, word, n_cols, found.scale, found.inverse, found.zero);
            word += WARP;
        }
    }
}

/// Writes the value range of each part of each row: cube `(part, row)`.
#[cube(launch_unchecked)]
pub fn spans<F: Float, N: Size>(
    x: &[Vector<F, N>],
    least: &mut [f32],
    most: &mut [f32],
    magnitude: &mut [u32],
    n_cols: u32,
    part_cols: u32,
    #[define(F)] _dtype: ElemType,
) {
    let start = CUBE_POS_Y as usize * (n_cols as usize / N::value());
    let from = CUBE_POS_X * part_cols;
    let to = min(from + part_cols, n_cols);
    let span = span_of::<F, N>(x, start + from as usize / N::value(), start + to as usize / N::value());
    if UNIT_POS == 0 {
        let at = (CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X) as usize;
        least[at] = span.least;
        most[at] = span.most;
        magnitude[at] = span.magnitude;
    }
}

/// Writes scale, inverse and zero point of each row from the ranges of its parts, one unit per row.
#[cube(launch_unchecked)]
pub fn row_scales(
    least: &[f32],
    most: &[f32],
    magnitude: &[u32],
    scales: &mut [f32],
    inverses: &mut [f32],
    zeros: &mut [i32],
    n_rows: u32,
    n_parts: u32,
    #[comptime] symmetric: bool,
) {
    let row = ABSOLUTE_POS;
    if row < n_rows as usize {
        let mut at = row * n_parts as usize;
        let end = at + n_parts as usize;
        let mut all_least = 0.0f32;
        let mut all_most = 0.0f32;
        let mut all_magnitude = 0u32;
        while at < end {
            all_least = min(all_least, least[at]);
            all_most = max(all_most, most[at]);
            all_magnitude = max(all_magnitude, magnitude[at]);
            at += 1usize;
        }
        let found = scale_of(all_least, all_most, all_magnitude, symmetric);
        scales[row] = found.scale;
        inverses[row] = found.inverse;
        zeros[row] = found.zero;
    }
}

/// Writes the codes of rows with known scales, one unit per word of `[n_rows, row_words]`.
#[cube(launch_unchecked)]
pub fn encode<F: Float, N: Size>(
    x: &[Vector<F, N>],
    scales: &[f32],
    inverses: &[f32],
    zeros: &[i32],
    codes: &mut [u32],
    n_cols: u32,
    row_words: u32,
    n_words: u32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < n_words as usize {
        let (row, word) = (at / row_words as usize, at % row_words as usize);
        let n_cols = n_cols as usize;
        codes[at] =
            word_of::<F, N>(x, row * (n_cols / N::value()), word, n_cols, scales[row], inverses[row], zeros[row]);
    }
}

/// Returns the value range of every `step`th vector of `x[from..to]`.
#[cube]
fn span_in<F: Float, N: Size>(x: &[Vector<F, N>], from: usize, to: usize, #[comptime] step: usize) -> Span {
    let mut least = 0.0f32;
    let mut most = 0.0f32;
    let mut magnitude = 0u32;
    let mut at = from;
    while at < to {
        let values = Vector::<f32, N>::cast_from(x[at]);
        #[unroll]
        for lane in 0..N::value() {
            let value = values.extract(lane);
            least = min(least, value);
            most = max(most, value);
            magnitude = max(magnitude, u32::reinterpret(value) & 0x7fff_ffffu32);
        }
        at += step;
    }
    Span { least, most, magnitude }
}

/// Returns the value range of `x[from..to]`, computed by all units of a cube together.
#[cube]
fn span_of<F: Float, N: Size>(x: &[Vector<F, N>], from: usize, to: usize) -> Span {
    let unit = UNIT_POS as usize;
    let span = span_in::<F, N>(x, from + unit, to, UNITS);
    let mut least = span.least;
    let mut most = span.most;
    let mut magnitude = span.magnitude;
    let mut all_least = Shared::<[f32]>::new_slice(UNITS);
    let mut all_most = Shared::<[f32]>::new_slice(UNITS);
    let mut all_magnitude = Shared::<[u32]>::new_slice(UNITS);
    all_least[unit] = least;
    all_most[unit] = most;
    all_magnitude[unit] = magnitude;
    sync_cube();
    let mut half = (UNITS / 2).runtime();
    while half > 0 {
        if unit < half {
            least = min(least, all_least[unit + half]);
            most = max(most, all_most[unit + half]);
            magnitude = max(magnitude, all_magnitude[unit + half]);
            all_least[unit] = least;
            all_most[unit] = most;
            all_magnitude[unit] = magnitude;
        }
        sync_cube();
        half /= 2usize;
    }
    Span { least: all_least[0], most: all_most[0], magnitude: all_magnitude[0] }
}

/// Returns the scale of values as in `briquette-cpu`, with the zero point minus 128; NaN if the magnitude is
/// not finite.
#[cube]
fn scale_of(least: f32, most: f32, magnitude: u32, #[comptime] symmetric: bool) -> RowScale {
    let mut scale = 1.0f32;
    let mut inverse = 1.0f32;
    let mut zero = 0i32;
    if magnitude >= INFINITY {
        scale = f32::reinterpret(0x7fc0_0000u32);
    } else if comptime!(symmetric) {
        let largest = f32::reinterpret(magnitude);
        let step = largest / 127.0f32;
        if step != 0.0f32 {
            scale = step;
            inverse = 127.0f32 / largest;
        }
    } else {
        let width = most - least;
        let mut step = width / 255.0f32;
        // The width of the range may overflow f32.
        if u32::reinterpret(width) >= INFINITY {
            step = most / 255.0f32 - least / 255.0f32;
        }
        if step == 0.0f32 {
            zero = -128i32;
        } else {
            scale = step;
            inverse = 1.0f32 / step;
            zero = i32::cast_from(clamp((-least / step).round(), 0.0f32, 255.0f32)) - 128i32;
        }
    }
    RowScale { scale, zero, inverse }
}

/// Returns four codes of a row of `n_cols` values that starts at vector `start`; after the last column, codes of zero.
#[cube]
fn word_of<F: Float, N: Size>(
    x: &[Vector<F, N>],
    start: usize,
    word: usize,
    n_cols: usize,
    scale: f32,
    inverse: f32,
    zero: i32,
) -> u32 {
    let lanes = N::value().comptime();
    let mut packed = 0u32;
    #[unroll]
    for i in 0..4usize {
        let col = word * 4 + i;
        let mut value = 0.0f32;
        if col < n_cols {
            let vector = x[start + word * comptime!(4 / lanes) + comptime!(i / lanes)];
            value = f32::cast_from(vector.extract(comptime!(i % lanes)));
        }
        packed |= code_of(value, scale, inverse, zero) << comptime!(i as u32 * 8);
    }
    packed
}

/// Returns `clamp(round(value / scale) + zero)`, halves to even, as a byte.
#[cube]
fn code_of(value: f32, scale: f32, inverse: f32, zero: i32) -> u32 {
    let mut steps = value * inverse;
    if (u32::reinterpret(inverse) & 0x7fff_ffffu32) >= INFINITY {
        steps = value / scale;
    }
    let steps = clamp(steps.round(), -32768.0f32, 32767.0f32);
    u32::reinterpret(clamp(i32::cast_from(steps) + zero, -128i32, 127i32)) & 0xffu32
}
