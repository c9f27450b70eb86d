//! The reference: what each operation means, in plain code.

use super::{Block, Columns, PANEL, RowBlock};
use crate::quantize_rows::ActivationGrid;

/// How a row is mapped to codes: `code = clamp(round(x * inverse) + zero, 0, 255)`.
#[derive(Clone, Copy)]
pub(crate) struct RowScale {
    pub(crate) scale: f32,
    pub(crate) zero: i32,
    /// `1 / scale`, infinite where the scale is too small for it; then codes come from dividing.
    pub(crate) inverse: f32,
}

impl RowScale {
    const ONE: Self = Self { scale: 1.0, zero: 0, inverse: 1.0 };

    /// The scale of a row whose largest magnitude, so many steps, has the given bits: NaN where those are not of a finite number.
    pub(crate) fn symmetric(magnitude: u32, n_steps: f32) -> Self {
        let largest = f32::from_bits(magnitude);
        let scale = largest / n_steps;
        if !largest.is_finite() {
            Self { scale: f32::NAN, zero: 128, inverse: f32::INFINITY }
        } else if scale == 0.0 {
            Self { zero: 128, ..Self::ONE }
        } else {
            Self { scale, zero: 128, inverse: inverse(largest, scale, n_steps) }
        }
    }

    /// The scale of a row that spans `min..=max`.
    pub(crate) fn asymmetric(min: f32, max: f32, magnitude: u32) -> Self {
        if !f32::from_bits(magnitude).is_finite() {
            return Self { scale: f32::NAN, zero: 0, inverse: f32::INFINITY };
        }
        let (min, max) = (min.min(0.0), max.max(0.0));
        let width = max - min;
        // The range itself may be beyond f32.
        let scale = if width.is_finite() { width / 255.0 } else { max / 255.0 - min / 255.0 };
        if scale == 0.0 {
            return Self::ONE;
        }
        let zero = (-min / scale).round_ties_even().clamp(0.0, 255.0) as i32;
        Self { scale, zero, inverse: 1.0 / scale }
    }

    /// The code of a value.
    #[inline(always)]
    pub(crate) fn code(self, value: f32) -> u8 {
        let steps = if self.inverse.is_finite() { value * self.inverse } else { value / self.scale };
        // Beyond i16 a code is at the end of its range anyway; the clamp is what packing with saturation does.
        let steps = steps.round_ties_even().clamp(-32768.0, 32767.0) as i32;
        (steps + self.zero).clamp(0, 255) as u8
    }
}

/// `n_steps / largest`, or what is next to it, by which the largest value comes to the step that dividing it by the scale gives:
/// half a step is met there, and which way it falls is one code of the largest value of every row.
fn inverse(largest: f32, scale: f32, n_steps: f32) -> f32 {
    let (inverse, step) = (n_steps / largest, (largest / scale).round_ties_even());
    let near = [inverse, inverse.next_up(), inverse.next_down()];
    near.into_iter().find(|inverse| (largest * inverse).round_ties_even() == step).unwrap_or(inverse)
}

/// The bits of the largest magnitude.
#[inline(always)]
fn magnitude(x: &[f32]) -> u32 {
    x.iter().map(|value| value.to_bits() & 0x7fff_ffff).max().unwrap_or(0)
}

/// What the scale of values is made from; the range is left at 0 where the grid does not ask for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Span {
    pub(crate) min: f32,
    pub(crate) max: f32,
    /// The bits of the largest magnitude.
    pub(crate) magnitude: u32,
}

impl Span {
    /// That of the values of both.
    pub(crate) fn merge(self, other: Self) -> Self {
        let (min, max) = (self.min.min(other.min), self.max.max(other.max));
        Self { min, max, magnitude: self.magnitude.max(other.magnitude) }
    }

    pub(crate) fn scale(self, grid: ActivationGrid) -> RowScale {
        match grid {
            ActivationGrid::Symmetric => RowScale::symmetric(self.magnitude, 127.0),
            ActivationGrid::SymmetricFull => RowScale::symmetric(self.magnitude, 127.5),
            ActivationGrid::Asymmetric => RowScale::asymmetric(self.min, self.max, self.magnitude),
        }
    }
}

/// The span of values.
#[inline(always)]
pub(crate) fn span(x: &[f32], grid: ActivationGrid) -> Span {
    let (min, max) = match grid {
        ActivationGrid::Symmetric | ActivationGrid::SymmetricFull => (0.0, 0.0),
        ActivationGrid::Asymmetric => {
            x.iter().fold((0.0_f32, 0.0_f32), |(min, max), &value| (min.min(value), max.max(value)))
        }
    };
    Span { min, max, magnitude: magnitude(x) }
}

/// Codes of values.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], row: RowScale, codes: &mut [u8]) {
    for (code, &value) in codes.iter_mut().zip(x) {
        *code = row.code(value);
    }
}

/// `(sum - zero * column sum) * row scale * column scale + bias`.
#[inline(always)]
pub(crate) fn finish(sum: i32, zero: i32, row_scale: f32, columns: &Columns, n: usize) -> f32 {
    let sum = sum.wrapping_sub(zero.wrapping_mul(columns.sums[n]));
    sum as f32 * row_scale * columns.scales[n] + columns.bias[n]
}

/// Rows times one panel.
pub(crate) fn multiply_panel(rows: RowBlock, panel: &[i8], columns: &Columns, out: &mut Block) {
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

/// A pixel of a depthwise convolution: `sums[c] = Σ_t taps[t][c] * weights[t, c]`.
#[inline(always)]
pub(crate) fn depthwise(taps: &[&[u8]], weights: &[i32], sums: &mut [i32]) {
    sums.fill(0);
    for (codes, weights) in taps.iter().zip(weights.chunks_exact(sums.len().max(1))) {
        for ((sum, &code), weight) in sums.iter_mut().zip(*codes).zip(weights) {
            *sum += i32::from(code) * weight;
        }
    }
}

/// `Σ (codes[i] - zero) * weights[i]`.
#[inline(always)]
pub(crate) fn dot(codes: &[u8], weights: &[i8], zero: i32) -> i32 {
    codes.iter().zip(weights).map(|(&code, &weight)| (i32::from(code) - zero) * i32::from(weight)).sum()
}
