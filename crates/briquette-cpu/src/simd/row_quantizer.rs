//! How a row of floats is mapped to codes, and the range of its values, from which that follows.

use crate::activations::ActivationGrid;

/// How a row is mapped to codes: `code = clamp(round(x * inverse) + zero, 0, 255)`.
#[derive(Clone, Copy)]
pub(crate) struct RowQuantizer {
    pub(crate) scale: f32,
    pub(crate) zero: i32,
    /// `1 / scale`, infinite where the scale is too small for it; then codes come from dividing.
    pub(crate) inverse: f32,
}

impl RowQuantizer {
    /// What a row of zeros has.
    pub(crate) const ONE: Self = Self { scale: 1.0, zero: 0, inverse: 1.0 };

    /// `scale = largest / n_steps`, with the bits of the row's largest magnitude given; NaN where that is not finite.
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

    /// The scale of a row that spans `min..=max`.
    #[inline(always)]
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
        let zero = round(-min / scale).clamp(0.0, 255.0) as i32;
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

/// A number of steps to a whole one, halves to even: without the features of a level, that of the standard library is a call.
fn round(steps: f32) -> f32 {
    const ROUNDS: f32 = 12_582_912.0; // 1.5 * 2^23: numbers beside it are 1 apart.
    steps + ROUNDS - ROUNDS
}

/// `n_steps / largest`, or the float next to it by which the largest value gets the code that dividing by the scale gives.
/// With 127.5 steps that value lies half way between two codes, so that the last bit would decide its code in every row.
fn inverse(largest: f32, scale: f32, n_steps: f32) -> f32 {
    let (inverse, step) = (n_steps / largest, round(largest / scale));
    let near = [inverse, inverse.next_up(), inverse.next_down()];
    near.into_iter().find(|inverse| round(largest * inverse) == step).unwrap_or(inverse)
}

/// What the scale of values follows from. `min` and `max` stay 0 on symmetric grids, which need only the magnitude.
#[derive(Clone, Copy, Default)]
pub(crate) struct ValueRange {
    pub(crate) min: f32,
    pub(crate) max: f32,
    /// The bits of the largest magnitude.
    pub(crate) magnitude: u32,
}

impl ValueRange {
    /// The range of the values of both.
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
        }
    }
}
