//! The mapping of a row of floats to codes, and the range of its values.

use crate::activations::{ActivationGrid, CodeGrid};

/// The mapping of a row to codes: `code = clamp(round(x * inverse) + zero, 0, 255)`.
#[derive(Clone, Copy)]
pub(crate) struct RowQuantizer {
    pub(crate) scale: f32,
    pub(crate) zero: i32,
    /// `1 / scale`; infinite if the scale is too small, in which case codes are computed by division.
    pub(crate) inverse: f32,
}

impl RowQuantizer {
    /// The quantizer of a row of zeros.
    pub(crate) const ONE: Self = Self { scale: 1.0, zero: 0, inverse: 1.0 };

    /// Returns the quantizer with `scale = largest / n_steps`; the scale is NaN if the magnitude is not finite.
    ///
    /// `magnitude` holds the bits of the row's largest magnitude.
    #[inline(always)]
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

    /// Returns the quantizer of a row with values in `min..=max`.
    #[inline(always)]
    pub(crate) fn asymmetric(min: f32, max: f32, magnitude: u32) -> Self {
        if !f32::from_bits(magnitude).is_finite() {
            return Self { scale: f32::NAN, zero: 0, inverse: f32::INFINITY };
        }
        let (min, max) = (min.min(0.0), max.max(0.0));
        let width = max - min;
        // The width of the range may overflow f32.
        let scale = if width.is_finite() { width / 255.0 } else { max / 255.0 - min / 255.0 };
        if scale == 0.0 {
            return Self::ONE;
        }
        let zero = round(-min / scale).clamp(0.0, 255.0) as i32;
        Self { scale, zero, inverse: 1.0 / scale }
    }

    /// Returns the quantizer of a grid that is known.
    pub(crate) fn fixed(grid: CodeGrid) -> Self {
        Self { scale: grid.scale, zero: grid.zero.into(), inverse: 1.0 / grid.scale }
    }

    /// Returns the code of a value.
    #[inline(always)]
    pub(crate) fn code(self, value: f32) -> u8 {
        let steps = if self.inverse.is_finite() { value * self.inverse } else { value / self.scale };
        // Beyond i16, a code is at the end of its range in any case. The clamp matches packing with saturation.
        let steps = steps.round_ties_even().clamp(-32768.0, 32767.0) as i32;
        (steps + self.zero).clamp(0, 255) as u8
    }
}

/// Rounds to an integer, halves to even. The function of the standard library would be a call without the
/// features of a level.
fn round(steps: f32) -> f32 {
    const ROUNDS: f32 = 12_582_912.0; // 1.5 * 2^23, whose neighbouring floats are 1 apart.
    steps + ROUNDS - ROUNDS
}

/// Returns `n_steps / largest`, or a neighbouring float that gives the largest value the same code as division
/// by the scale.
///
/// With 127.5 steps, that value is half way between two codes, so the last bit would decide its code in every
/// row.
fn inverse(largest: f32, scale: f32, n_steps: f32) -> f32 {
    let (inverse, step) = (n_steps / largest, round(largest / scale));
    let near = [inverse, inverse.next_up(), inverse.next_down()];
    near.into_iter().find(|inverse| round(largest * inverse) == step).unwrap_or(inverse)
}

/// The range of values that determines a scale. `min` and `max` stay 0 on symmetric grids, which need only the
/// magnitude.
#[derive(Clone, Copy, Default)]
pub(crate) struct ValueRange {
    pub(crate) min: f32,
    pub(crate) max: f32,
    /// The bits of the largest magnitude.
    pub(crate) magnitude: u32,
}

impl ValueRange {
    /// Returns the range of both together.
    pub(crate) fn merge(self, other: Self) -> Self {
        let (min, max) = (self.min.min(other.min), self.max.max(other.max));
        Self { min, max, magnitude: self.magnitude.max(other.magnitude) }
    }

    #[inline(always)]
    pub(crate) fn scale(self, grid: ActivationGrid) -> RowQuantizer {
        match grid {
            ActivationGrid::Symmetric => RowQuantizer::symmetric(self.magnitude, 127.0),
            ActivationGrid::SymmetricFull => RowQuantizer::symmetric(self.magnitude, 127.5),
            ActivationGrid::Asymmetric => RowQuantizer::asymmetric(self.min, self.max, self.magnitude),
            ActivationGrid::Fixed(grid) => RowQuantizer::fixed(grid),
        }
    }
}
