//! The range with the least squared error.

use super::CHECKED;
use briquette_core::simd::{self, RANGES};
use briquette_core::{Affine, Grid};

/// The number of shrunken ranges to try: 1, 0.99, …, 0.30 of the whole range.
const N_STEPS: usize = 71;
/// The maximum relative difference between the approximate and the exact error of a range.
const NEAR: f64 = 2e-4;

/// Returns the grid over `f·min..=f·max`, `f` from 1 down to 0.3 in hundredths, with the least `Σ (w - v)²`.
///
/// Among equal errors the widest range wins, so the result is never worse than [`minmax`](super::minmax). The
/// errors of sixteen ranges are approximated in one pass; then ranges that may be the best are compared
/// exactly. The search stops when the clamping error of the extremes alone exceeds the least error.
///
/// Source: Banner et al., "Post training 4-bit quantization of convolutional networks for rapid-deployment",
/// 2019, by search instead of in closed form.
///
/// # Errors
/// The first error of `check_stop`.
///
/// # Panics
/// If a weight is not finite.
pub fn mse<E>(group: &[f32], grid: Grid, check_stop: &impl Fn() -> Result<(), E>) -> Result<Affine, E> {
    let (min, max) = simd::min_max(group);
    let shrunken = |step: usize| {
        let share = 1.0 - step as f32 / 100.0;
        Affine::over(min * share, max * share, grid)
    };
    let (mut near, mut least) = ([f64::INFINITY; N_STEPS], f64::INFINITY);
    for first in (0..N_STEPS).step_by(RANGES) {
        if cut_off(min, max, shrunken(first).scale, grid) > least * (1.0 + NEAR) {
            break;
        }
        let affines = std::array::from_fn(|place| shrunken((first + place).min(N_STEPS - 1)));
        let errors = near_errors(group, &affines, grid, check_stop)?;
        near[first..].iter_mut().zip(errors).for_each(|(near, error)| *near = error);
        least = errors.into_iter().fold(least, f64::min);
    }
    // Outside of this interval the f32 sums underflow or overflow, so all ranges are compared exactly.
    let is_sound = (1e-30..1e30).contains(&least);
    let may_win = |step: &usize| !is_sound || near[*step] <= least * (1.0 + NEAR);
    let mut best = (shrunken(0), f64::INFINITY);
    for affine in (0..N_STEPS).filter(may_win).map(shrunken) {
        let error = squared_error(group, affine, grid, check_stop)?;
        if error < best.1 {
            best = (affine, error);
        }
    }
    Ok(best.0)
}

/// Returns the least possible squared error of the two extremes on a grid of this scale, for any zero point.
///
/// It grows as the scale shrinks.
fn cut_off(min: f32, max: f32, scale: f32, grid: Grid) -> f64 {
    let (low, high) = (f64::from(grid.min_code()), f64::from(grid.max_code()));
    let (min, max, scale) = (f64::from(min.min(0.0)), f64::from(max.max(0.0)), f64::from(scale));
    match grid.is_asymmetric() {
        // The range is too short by this amount. The sum of squared errors is least if it is split evenly
        // between both ends.
        true => (max - min - (high - low) * scale).max(0.0).powi(2) / 2.0,
        false => (max.max(-min) - high.max(-low) * scale).max(0.0).powi(2),
    }
}

fn near_errors<E>(
    group: &[f32],
    affines: &[Affine; RANGES],
    grid: Grid,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<[f64; RANGES], E> {
    group.chunks(CHECKED).try_fold([0.0; RANGES], |mut sums, piece| {
        check_stop()?;
        let found = simd::near_squared_errors(piece, affines, grid);
        sums.iter_mut().zip(found).for_each(|(sum, error)| *sum += error);
        Ok(sums)
    })
}

fn squared_error<E>(
    group: &[f32],
    affine: Affine,
    grid: Grid,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<f64, E> {
    group.chunks(CHECKED).try_fold(0.0, |sum, piece| {
        check_stop()?;
        Ok(sum + simd::squared_error(piece, affine, grid))
    })
}
