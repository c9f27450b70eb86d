//! Half-quadratic quantization.

use super::{fold, minmax, squared_error};
use briquette_core::{Affine, Grid};

const N_STEPS: usize = 20;
const P_NORM: f32 = 0.7;
const BETA: f32 = 10.0;
const KAPPA: f32 = 1.01;

/// Minimises `Σ |w - v|^p`, p = 0.7, by half-quadratic splitting: a shrinkage step on the error, then the zero point
/// (asymmetric) or the scale (symmetric) that fits it best.
///
/// `e = shrink(w - v, β)`, `shrink(x, β) = sign(x) · max(|x| - |x|^(p-1) / β, 0)`; asymmetric
/// `zero = mean(q - (w - e) / scale)`, symmetric `scale = Σ q·(w - e) / Σ q²`; `β` grows by 1.01 a step. The published
/// method keeps a fractional zero point; here it is rounded, so that 0.0 stays exact. The best iterate by `Σ |w - v|^p`
/// is returned, the whole range among them.
/// Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
///
/// # Errors
/// The first that `go_on` has.
///
/// # Panics
/// If a weight is not finite.
pub fn hqq<E>(group: &[f32], grid: Grid, go_on: &impl Fn() -> Result<(), E>) -> Result<Affine, E> {
    let mut best = minmax(group, grid);
    if squared_error(group, best, grid, go_on)? == 0.0 {
        return Ok(best);
    }
    let mut least = robust_error(group, best, grid, go_on)?;
    let (mut affine, mut beta) = (best, BETA);
    for _ in 0..N_STEPS {
        affine = if grid.is_asymmetric() {
            fit_zero(group, affine, grid, beta, go_on)?
        } else {
            fit_scale(group, affine, grid, beta, go_on)?
        };
        let error = robust_error(group, affine, grid, go_on)?;
        if error < least {
            (best, least) = (affine, error);
        }
        beta *= KAPPA;
    }
    Ok(best)
}

fn robust_error<E>(group: &[f32], affine: Affine, grid: Grid, go_on: &impl Fn() -> Result<(), E>) -> Result<f64, E> {
    let error = |value: f32| (value - affine.dequantize(affine.quantize(value, grid))).abs();
    fold(group, 0.0, go_on, |sum, value| sum + f64::from(error(value).powf(P_NORM)))
}

/// The weight without the part of its error that is taken as an outlier's.
fn target(value: f32, affine: Affine, grid: Grid, beta: f32) -> (f32, i8) {
    let code = affine.quantize(value, grid);
    let error = value - affine.dequantize(code);
    let size = error.abs();
    let shrunk = if size > 0.0 { (size - size.powf(P_NORM - 1.0) / beta).max(0.0) } else { 0.0 };
    (value - error.signum() * shrunk, code)
}

fn fit_zero<E>(
    group: &[f32],
    affine: Affine,
    grid: Grid,
    beta: f32,
    go_on: &impl Fn() -> Result<(), E>,
) -> Result<Affine, E> {
    let zero = |value: f32| {
        let (target, code) = target(value, affine, grid, beta);
        f64::from(code) - f64::from(target / affine.scale)
    };
    let mean = fold(group, 0.0, go_on, |sum, value| sum + zero(value))? / group.len() as f64;
    let (low, high) = (f64::from(grid.min_code()), f64::from(grid.max_code()));
    Ok(Affine { zero: mean.round_ties_even().clamp(low, high) as i8, ..affine })
}

fn fit_scale<E>(
    group: &[f32],
    affine: Affine,
    grid: Grid,
    beta: f32,
    go_on: &impl Fn() -> Result<(), E>,
) -> Result<Affine, E> {
    let (product, square) = fold(group, (0.0_f64, 0.0_f64), go_on, |(product, square), value| {
        let (target, code) = target(value, affine, grid, beta);
        (product + f64::from(code) * f64::from(target), square + f64::from(code).powi(2))
    })?;
    let scale = (product / square) as f32;
    Ok(if scale.is_finite() && scale > 0.0 { Affine::symmetric(scale) } else { affine })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::GridKind;
    use std::convert::Infallible;

    #[test]
    fn the_robust_error_is_below_that_of_the_whole_range() {
        let group: Vec<f32> = (0..256).map(|i| (((i * 37) % 101) as f32 / 50.0 - 1.0).powi(3) + 0.1).collect();
        let go_on = || Ok::<(), Infallible>(());
        let compare = |grid| {
            let Ok(fitted) = hqq(&group, grid, &go_on);
            let [fitted, whole] = [fitted, minmax(&group, grid)].map(|affine| {
                let Ok(error) = robust_error(&group, affine, grid, &go_on);
                error
            });
            (fitted, whole)
        };
        let (fitted, whole) = compare(Grid::new(3, GridKind::Symmetric).unwrap());
        assert!(fitted < 0.95 * whole, "{fitted} {whole}");
        let (fitted, whole) = compare(Grid::new(2, GridKind::Asymmetric).unwrap());
        assert!(fitted <= whole, "{fitted} {whole}");
    }
}
