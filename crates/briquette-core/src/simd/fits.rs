//! What a search for a range asks of its weights: how far they are from a grid, over and over.
//!
//! Sums and products only, each rounded, so that every processor finds the same range.

use super::scalar::ROUND;
use crate::{Affine, Grid};
use std::f32::consts::LN_2;

const LANES: usize = 16;

/// See [`squared_error`](super::squared_error).
#[inline(always)]
pub fn squared_error(values: &[f32], affine: Affine, grid: Grid) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (runs, rest) = values.as_chunks();
    for run in runs {
        add_squares(run, affine, grid, &mut sums);
    }
    add_squares(&filled_up(rest), affine, grid, &mut sums);
    sums.iter().sum()
}

#[inline(always)]
fn add_squares(run: &[f32; LANES], affine: Affine, grid: Grid, sums: &mut [f64; LANES]) {
    let bounds = affine.code_bounds(grid);
    for (sum, &value) in sums.iter_mut().zip(run) {
        let error = f64::from(value - steps(value, affine.scale, bounds) * affine.scale);
        *sum += error * error;
    }
}

/// Ranges that are compared at once.
pub const RANGES: usize = 16;

/// See [`near_squared_errors`](super::near_squared_errors).
#[inline(always)]
pub fn near_squared_errors(values: &[f32], affines: &[Affine; RANGES], grid: Grid) -> [f64; RANGES] {
    /// Few enough that running f32 sums lose nothing that matters.
    const BLOCK: usize = 1024;
    let (scales, bounds) = (affines.map(|affine| affine.scale), affines.map(|affine| affine.code_bounds(grid)));
    let (inverses, lows, highs) = (scales.map(|scale| 1.0 / scale), bounds.map(|b| b.0), bounds.map(|b| b.1));
    let mut total = [0.0_f64; RANGES];
    for block in values.chunks(BLOCK) {
        let mut sums = [0.0_f32; RANGES];
        for &value in block {
            for range in 0..RANGES {
                let steps = value * inverses[range];
                let steps = if steps > lows[range] { steps } else { lows[range] };
                let steps = if steps < highs[range] { steps } else { highs[range] };
                let error = value - (steps + ROUND - ROUND) * scales[range];
                sums[range] += error * error;
            }
        }
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
    }
    total
}

/// See [`half_quadratic_sums`](super::half_quadratic_sums).
#[inline(always)]
pub fn half_quadratic_sums(values: &[f32], affine: Affine, grid: Grid, beta: f32) -> [f64; 3] {
    let mut sums = [[0.0_f64; LANES]; 3];
    let (runs, rest) = values.as_chunks();
    for run in runs {
        add_half_quadratic(run, affine, grid, 1.0 / beta, &mut sums);
    }
    add_half_quadratic(&filled_up(rest), affine, grid, 1.0 / beta, &mut sums);
    sums.map(|lanes| lanes.iter().sum())
}

#[inline(always)]
fn add_half_quadratic(run: &[f32; LANES], affine: Affine, grid: Grid, per_beta: f32, sums: &mut [[f64; LANES]; 3]) {
    let bounds = affine.code_bounds(grid);
    for (lane, &value) in run.iter().enumerate() {
        let code = steps(value, affine.scale, bounds);
        let error = value - code * affine.scale;
        let size = error.abs();
        let power = power(if size > f32::MIN_POSITIVE { size } else { f32::MIN_POSITIVE });
        let shrunk = size - power * per_beta;
        let target = value - if shrunk > 0.0 { shrunk } else { 0.0 }.copysign(error);
        sums[0][lane] += f64::from(size * power);
        sums[1][lane] += f64::from(code) * f64::from(target);
        sums[2][lane] += f64::from(code * code);
    }
}

/// The last values, filled up with zeros: those are exact on every grid and add nothing.
#[inline(always)]
fn filled_up(rest: &[f32]) -> [f32; LANES] {
    let mut run = [0.0; LANES];
    run[..rest.len()].copy_from_slice(rest);
    run
}

/// The code of a value, relative to the zero point.
#[inline(always)]
fn steps(value: f32, scale: f32, (low, high): (f32, f32)) -> f32 {
    (value / scale).clamp(low, high) + ROUND - ROUND
}

/// `x^-0.3` of a normal number above zero, to five digits: `2^(-0.3 log2 x)`, both by series.
#[inline(always)]
fn power(x: f32) -> f32 {
    /// The bits of √½: mantissas are taken from there to √2.
    const ROOT: i32 = 0x3f35_04f3;
    let bits = x.to_bits() as i32;
    let exponent = (bits - ROOT) >> 23;
    let mantissa = f32::from_bits((bits - (exponent << 23)) as u32);
    // ln m = 2 artanh s, s = (m - 1) / (m + 1), which is at most 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0)));
    let wanted = -0.3 * (exponent as f32 + 2.0 / LN_2 * s * series);
    let rounded = wanted + ROUND;
    let x = (wanted - (rounded - ROUND)) * LN_2;
    let series =
        1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0))))));
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    f32::from_bits((series.to_bits() as i32 + (whole << 23)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GridKind;
    use crate::simd;
    use proptest::prelude::*;

    #[test]
    fn the_power_is_that_of_the_standard_library() {
        let mut x = f32::MIN_POSITIVE;
        while x < 1e38 {
            let (found, expected) = (power(x), f64::from(x).powf(-0.3));
            assert!((f64::from(found) / expected - 1.0).abs() < 5e-6, "{x}: {found} {expected}");
            x *= 1.000_37;
        }
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_reference_and_with_the_law(
            values in prop::collection::vec(-3.0_f32..3.0, 0..70), n_bits in 2_u8..=8, scale in 0.01_f32..1.0, zero in -2_i8..2,
        ) {
            for (kind, zero) in [(GridKind::Symmetric, 0), (GridKind::Asymmetric, zero)] {
                let (grid, affine) = (Grid::new(n_bits, kind).unwrap(), Affine { scale, zero });
                let found = simd::squared_error(&values, affine, grid);
                prop_assert_eq!(found, squared_error(&values, affine, grid));
                let error = |value: f32| value - affine.dequantize(affine.quantize(value, grid));
                let expected: f64 = values.iter().map(|&value| f64::from(error(value)).powi(2)).sum();
                prop_assert!((found - expected).abs() <= 1e-12 * (1.0 + expected));
                let near = simd::near_squared_errors(&values, &[affine; RANGES], grid);
                prop_assert_eq!(near, near_squared_errors(&values, &[affine; RANGES], grid));
                prop_assert!((near[3] - expected).abs() <= 1e-4 * expected, "{} {}", near[3], expected);
                let found = simd::half_quadratic_sums(&values, affine, grid, 10.0);
                prop_assert_eq!(found, half_quadratic_sums(&values, affine, grid, 10.0));
                let expected: f64 = values.iter().map(|&value| f64::from(error(value).abs()).powf(0.7)).sum();
                prop_assert!((found[0] - expected).abs() <= 1e-5 * (1.0 + expected));
            }
        }
    }
}
