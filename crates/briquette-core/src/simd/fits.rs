//! Quantization errors of weights for a scale, the inner loop of the search for the best range.
//!
//! Uses only sums and products that are rounded one by one, so that every processor finds the same range.

use super::scalar::ROUND;
use crate::{Affine, Grid};

const LANES: usize = 16;
/// Values per block: few enough that running f32 sums stay accurate.
const BLOCK: usize = 1024;

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

/// Ranges that are compared in one call.
pub const RANGES: usize = 16;

/// See [`near_squared_errors`](super::near_squared_errors).
#[inline(always)]
pub fn near_squared_errors(values: &[f32], affines: &[Affine; RANGES], grid: Grid) -> [f64; RANGES] {
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
    let mut total = [0.0_f64; 3];
    for block in values.chunks(BLOCK) {
        let mut sums = [[0.0_f32; LANES]; 3];
        let (runs, rest) = block.as_chunks();
        for run in runs {
            add_half_quadratic(run, affine, grid, 1.0 / beta, &mut sums);
        }
        if !rest.is_empty() {
            add_half_quadratic(&filled_up(rest), affine, grid, 1.0 / beta, &mut sums);
        }
        total.iter_mut().zip(sums).for_each(|(total, lanes)| *total += f64::from(sum_of(lanes)));
    }
    total
}

/// Adds the lanes in pairs, which shortens the chain of dependent additions.
#[inline(always)]
fn sum_of(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

#[inline(always)]
fn add_half_quadratic(run: &[f32; LANES], affine: Affine, grid: Grid, per_beta: f32, sums: &mut [[f32; LANES]; 3]) {
    let ((low, high), inverse) = (affine.code_bounds(grid), 1.0 / affine.scale);
    for lane in 0..LANES {
        let value = run[lane];
        let steps = value * inverse;
        let steps = if steps > low { steps } else { low };
        let steps = if steps < high { steps } else { high };
        let code = steps + ROUND - ROUND;
        let error = value - code * affine.scale;
        let size = error.abs();
        let power = power(if size > f32::MIN_POSITIVE { size } else { f32::MIN_POSITIVE });
        let shrunk = size - power * per_beta;
        let shrunk = if shrunk > 0.0 { shrunk } else { 0.0 };
        let target = value - shrunk.copysign(error);
        sums[0][lane] += size * power;
        sums[1][lane] += code * target;
        sums[2][lane] += code * code;
    }
}

/// Pads the last values with zeros, which every grid represents exactly and which add nothing to the sums.
#[inline(always)]
fn filled_up(rest: &[f32]) -> [f32; LANES] {
    let mut run = [0.0; LANES];
    run[..rest.len()].copy_from_slice(rest);
    run
}

/// Returns the code of a value relative to the zero point.
#[inline(always)]
fn steps(value: f32, scale: f32, (low, high): (f32, f32)) -> f32 {
    (value / scale).clamp(low, high) + ROUND - ROUND
}

/// Returns `x^-0.3` of a positive normal number, to about five digits.
///
/// Computes `2^(-0.3 log2 x)` with polynomials through Chebyshev points for the logarithm and the power.
#[inline(always)]
fn power(x: f32) -> f32 {
    /// The bits of √½: mantissas range from √½ to √2.
    const ROOT: i32 = 0x3f35_04f3;
    let bits = x.to_bits() as i32;
    let exponent = (bits - ROOT) >> 23;
    let t = f32::from_bits((bits - (exponent << 23)) as u32) - 1.0;
    // log2(1 + t), with an error of at most 1.7e-5.
    let log = polynomial(t, [-6.308_053e-6, 1.442_517_6, -0.720_214_1, 0.488_225_7, -0.393_689_7, 0.243_272_78]);
    let wanted = -0.3 * (exponent as f32 + log);
    let rounded = wanted + ROUND;
    // 2^x for x from -½ to ½, with an error of at most 2.8e-6.
    let power = polynomial(wanted - (rounded - ROUND), [1.0, 0.693_121, 0.240_223_5, 0.055_921_976, 0.009_666_369]);
    let whole = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    f32::from_bits((power.to_bits() as i32 + (whole << 23)) as u32)
}

#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GridKind;
    use crate::simd;
    use proptest::prelude::*;

    #[test]
    fn power_agrees_with_the_standard_library() {
        let mut x = f32::MIN_POSITIVE;
        while x < 1e38 {
            let (found, expected) = (power(x), f64::from(x).powf(-0.3));
            assert!((f64::from(found) / expected - 1.0).abs() < 2e-5, "{x}: {found} {expected}");
            x *= 1.000_37;
        }
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_reference_and_their_definition(
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
                prop_assert!((found[0] - expected).abs() <= 1e-4 * (1.0 + expected));
            }
        }
    }
}
