//! The reference: portable code that defines each operation.

use super::block::OutputBlock;
use super::column_quantizers::{ColumnQuantizers, ColumnRanges};
use super::operands::{PANEL, PanelColumns, RowBlock};
use super::rounded_rows::CodeRounding;
use super::row_quantizer::{RowQuantizer, ValueRange};
use crate::activations::ActivationGrid;

/// Returns the bits of the largest magnitude.
#[inline(always)]
fn magnitude(x: &[f32]) -> u32 {
    x.iter().map(|value| value.to_bits() & 0x7fff_ffff).max().unwrap_or(0)
}

/// Returns the range of values.
#[inline(always)]
pub(crate) fn value_range(x: &[f32], grid: ActivationGrid) -> ValueRange {
    let (min, max) = match grid {
        ActivationGrid::Symmetric | ActivationGrid::SymmetricFull | ActivationGrid::Fixed(_) => (0.0, 0.0),
        ActivationGrid::Asymmetric => {
            x.iter().fold((0.0_f32, 0.0_f32), |(min, max), &value| (min.min(value), max.max(value)))
        }
    };
    ValueRange { min, max, magnitude: magnitude(x) }
}

/// Quantizes values.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], row: RowQuantizer, codes: &mut [u8]) {
    for (code, &value) in codes.iter_mut().zip(x) {
        *code = row.code(value);
    }
}

/// Adds the value of each column in one more row to their ranges.
#[inline(always)]
pub(crate) fn add_to_ranges(row: &[f32], ranges: &mut ColumnRanges) {
    ranges.add(row);
}

/// Quantizes the value of each column in a row.
#[inline(always)]
pub(crate) fn quantize_columns(row: &[f32], columns: &ColumnQuantizers, codes: &mut [u8]) {
    columns.quantize(row, codes);
}

/// Returns `(sum - zero * column sum) * row scale * column scale + bias`.
#[inline(always)]
pub(crate) fn finish(sum: i32, zero: i32, row_scale: f32, columns: &PanelColumns, n: usize) -> f32 {
    let sum = sum.wrapping_sub(zero.wrapping_mul(columns.sums[n]));
    sum as f32 * row_scale * columns.scales[n] + columns.bias[n]
}

/// Multiplies rows by one panel.
pub(crate) fn multiply_panel(rows: RowBlock, panel: &[i8], columns: &PanelColumns, out: &mut OutputBlock) {
    for row in 0..rows.n_rows() {
        let codes = &rows.codes[row * rows.stride..(row + 1) * rows.stride];
        let mut sums = [0_i32; PANEL];
        for (codes, weights) in codes.as_chunks::<4>().0.iter().zip(panel.as_chunks::<{ 4 * PANEL }>().0) {
            for (sum, weights) in sums.iter_mut().zip(weights.as_chunks::<4>().0) {
                let products = codes.iter().zip(weights).map(|(&code, &weight)| i32::from(code) * i32::from(weight));
                *sum = sum.wrapping_add(products.sum::<i32>());
            }
        }
        for (n, value) in out.row(row).iter_mut().enumerate() {
            *value = finish(sums[n], rows.zeros[row], rows.scales[row], columns, n);
        }
    }
}

/// Computes a pixel of a depthwise convolution: `sums[c] = Σ_t taps[t][c] * weights[t, c]`.
#[inline(always)]
pub(crate) fn depthwise(taps: &[&[u8]], weights: &[i32], sums: &mut [i32]) {
    sums.fill(0);
    for (codes, weights) in taps.iter().zip(weights.chunks_exact(sums.len().max(1))) {
        for ((sum, &code), weight) in sums.iter_mut().zip(*codes).zip(weights) {
            *sum += i32::from(code) * weight;
        }
    }
}

/// Returns `Σ (codes[i] - zero) * weights[i]`.
#[inline(always)]
pub(crate) fn dot(codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    codes.iter().zip(weights).map(|(&code, &weight)| (i32::from(code) - zero) * i32::from(weight)).sum()
}

/// Adding this to a number from 0 to 255 rounds it, half to even, and puts it into the low byte.
const ROUND: f32 = 12_582_912.0;

/// Rounds to a code within bounds; NaN becomes the lower one.
#[inline(always)]
pub(crate) fn rounded(steps: f32, [low, high]: [f32; 2]) -> u8 {
    (steps.max(low).min(high) + ROUND).to_bits() as u8
}

/// Rounds values to codes: see [`CodeRounding`].
#[inline(always)]
pub(super) fn requantize(values: &[f32], rounding: &CodeRounding, codes: &mut [u8]) {
    let CodeRounding { factors, shifts, bounds, .. } = *rounding;
    for (((code, value), factor), shift) in codes.iter_mut().zip(values).zip(factors).zip(shifts) {
        *code = rounded(value * factor + shift, bounds);
    }
}
