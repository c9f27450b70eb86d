//! Half-quadratic quantization (HQQ).

use super::{CHECKED, minmax};
use briquette_core::{Affine, Grid, simd};

const N_STEPS: usize = 20;
const BETA: f32 = 10.0;
const KAPPA: f32 = 1.01;
/// `BETA · KAPPA^N_STEPS`.
const LAST_BETA: f32 = 12.201_9;

/// Minimizes `Σ |w - v|^p`, p = 0.7, by half-quadratic splitting.
///
/// Each step shrinks the error and then fits the scale: `e = shrink(w - v, β)`, `scale = Σ q·(w - e) / Σ q²`,
/// with `shrink(x, β) = sign(x) · max(|x| - |x|^(p-1) / β, 0)`. `β` grows by a factor of 1.01 per step. Returns
/// the iterate with the least `Σ |w - v|^p`; the whole range is the first iterate.
///
/// On an asymmetric grid it equals [`minmax`]: the published method uses fractional zero points, but here zero
/// points are integers so that 0.0 stays exact.
///
/// Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023.
///
/// # Errors
/// The first error of `check_stop`.
///
/// # Panics
/// If a weight is not finite.
pub fn hqq<E>(group: &[f32], grid: Grid, check_stop: &impl Fn() -> Result<(), E>) -> Result<Affine, E> {
    let whole = minmax(group, grid);
    if grid.is_asymmetric() || !is_usable(whole.scale) {
        return Ok(whole);
    }
    let (mut affine, mut beta) = (whole, BETA);
    let (mut best, mut least) = (whole, f64::INFINITY);
    for _ in 0..=N_STEPS {
        let [error, product, square] = sums(group, affine, grid, beta, check_stop)?;
        if error < least {
            (best, least) = (affine, error);
        }
        let scale = (product / square) as f32;
        if error == 0.0 || !is_usable(scale) {
            break;
        }
        if scale != affine.scale {
            (affine, beta) = (Affine::symmetric(scale), beta * KAPPA);
        } else if beta < LAST_BETA {
            // The scale has converged. It may still change at a larger β, so the largest is tried next; if the
            // scale does not change then either, the search ends.
            beta = LAST_BETA;
        } else {
            break;
        }
    }
    Ok(best)
}

/// Returns whether a scale and its inverse are both normal floats, because weights are multiplied by the
/// inverse.
fn is_usable(scale: f32) -> bool {
    scale.is_normal() && scale > 0.0 && (1.0 / scale).is_normal()
}

/// Computes the robust error at a scale, and the two sums that give the next scale.
fn sums<E>(
    group: &[f32],
    affine: Affine,
    grid: Grid,
    beta: f32,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<[f64; 3], E> {
    group.chunks(CHECKED).try_fold([0.0; 3], |[error, product, square], piece| {
        check_stop()?;
        let found = simd::half_quadratic_sums(piece, affine, grid, beta);
        Ok([error + found[0], product + found[1], square + found[2]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::GridKind;
    use proptest::prelude::*;
    use std::convert::Infallible;

    const P: f32 = 0.7;

    fn fitted(group: &[f32], grid: Grid) -> Affine {
        let Ok(affine) = hqq(group, grid, &|| Ok::<(), Infallible>(()));
        affine
    }

    fn robust_error(group: &[f32], affine: Affine, grid: Grid) -> f64 {
        let error = |value: f32| (value - affine.dequantize(affine.quantize(value, grid))).abs();
        group.iter().map(|&value| f64::from(error(value).powf(P))).sum()
    }

    /// Runs the method as published, one weight at a time.
    fn reference(group: &[f32], grid: Grid) -> Affine {
        let mut best = minmax(group, grid);
        let (mut affine, mut beta, mut least) = (best, BETA, robust_error(group, best, grid));
        for _ in 0..N_STEPS {
            let (mut product, mut square) = (0.0_f64, 0.0_f64);
            for &value in group {
                let code = affine.quantize(value, grid);
                let error = value - affine.dequantize(code);
                let size = error.abs();
                let shrunk = if size > 0.0 { (size - size.powf(P - 1.0) / beta).max(0.0) } else { 0.0 };
                product += f64::from(code) * f64::from(value - error.signum() * shrunk);
                square += f64::from(code).powi(2);
            }
            let scale = (product / square) as f32;
            affine = if scale.is_finite() && scale > 0.0 { Affine::symmetric(scale) } else { affine };
            let error = robust_error(group, affine, grid);
            if error < least {
                (best, least) = (affine, error);
            }
            beta *= KAPPA;
        }
        best
    }

    #[test]
    fn the_robust_error_is_below_that_of_the_whole_range() {
        let group: Vec<f32> = (0..256).map(|i| (((i * 37) % 101) as f32 / 50.0 - 1.0).powi(3) + 0.1).collect();
        let grid = Grid::new(3, GridKind::Symmetric).unwrap();
        let [fitted, whole] = [fitted(&group, grid), minmax(&group, grid)].map(|a| robust_error(&group, a, grid));
        assert!(fitted < 0.95 * whole, "{fitted} {whole}");
        let asymmetric = Grid::new(2, GridKind::Asymmetric).unwrap();
        assert_eq!(super::hqq(&group, asymmetric, &|| Ok::<(), Infallible>(())), Ok(minmax(&group, asymmetric)));
    }

    /// Returns reproducible groups of 1 to 199 weights, half of them with outliers, and a grid for each.
    fn groups() -> impl Iterator<Item = (Vec<f32>, Grid)> {
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        (0..600_usize).map(move |case| {
            let power = if case % 2 == 0 { 1 } else { 5 };
            let group = (0..case % 199 + 1).map(|_| (5.0 * next() - 2.0).powi(power)).collect();
            (group, Grid::new((case % 7) as u8 + 2, GridKind::Symmetric).unwrap())
        })
    }

    /// The published method goes through every `β`, and rounds values halfway between two codes in its own way. A
    /// single group may therefore end better or worse; the mean over many groups does not.
    #[test]
    fn the_mean_error_is_that_of_the_published_method() {
        let ratios = groups().map(|(group, grid)| {
            let [found, expected] =
                [fitted(&group, grid), reference(&group, grid)].map(|affine| robust_error(&group, affine, grid));
            if expected == 0.0 { 1.0 } else { found / expected }
        });
        let ratios: Vec<f64> = ratios.collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let worst = ratios.iter().copied().fold(0.0, f64::max);
        println!("{mean} {worst}");
        assert!((mean - 1.0).abs() < 1e-3, "{mean}, at most {worst}");
    }

    proptest! {
        /// `power` has five digits, so a scale may be chosen whose error is larger in the sixth.
        #[test]
        fn the_robust_error_is_never_above_that_of_the_whole_range(
            group in prop::collection::vec(-2.0_f32..3.0, 1..200), n_bits in 2_u8..=8,
        ) {
            let grid = Grid::new(n_bits, GridKind::Symmetric).unwrap();
            let [found, whole] = [fitted(&group, grid), minmax(&group, grid)].map(|a| robust_error(&group, a, grid));
            prop_assert!(found <= (1.0 + 2e-4) * whole, "{} {}", found, whole);
        }
    }
}
