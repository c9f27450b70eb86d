//! The range with the least error at the layer outputs.

use super::{CHECKED, WeightGroup, mse};
use crate::quant::unseen::fill_unseen;
use briquette_core::{Affine, Grid, simd};
use std::borrow::Cow;

/// The number of shrunken ranges to try: 1, 0.99, …, 0.30 of the whole range.
const N_STEPS: usize = 71;

/// Returns the grid over `f·min..=f·max`, `f` from 1 down to 0.3 in hundredths, with the least `Σ E[x²]·(w -
/// v)²`.
///
/// This is the squared output error that rounding adds if the inputs are uncorrelated. Among equal errors the
/// widest range wins. If the mean squares are unknown or all 0, the result equals [`mse`](mse()). An input that was 0
/// throughout counts as the mean of the others, because other data may use it.
///
/// Source: Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", 2024,
/// for the search by output error. The diagonal of the Hessian is as in Frantar et al., "GPTQ", 2023.
///
/// # Errors
/// The first error of `check_stop`.
///
/// # Panics
/// If a weight is not finite.
pub fn weighted<E>(group: WeightGroup, grid: Grid, check_stop: &impl Fn() -> Result<(), E>) -> Result<Affine, E> {
    let WeightGroup { values, mean_square } = group;
    let Some(importance) = mean_square.and_then(importance_of) else {
        return mse(values, grid, check_stop);
    };
    let (min, max) = simd::min_max(values);
    let mut best = (Affine::over(min, max, grid), f64::INFINITY);
    for step in 0..N_STEPS {
        let share = 1.0 - step as f32 / 100.0;
        let affine = Affine::over(min * share, max * share, grid);
        let error = weighted_error(values, &importance, affine, grid, check_stop)?;
        if error < best.1 {
            best = (affine, error);
        }
    }
    Ok(best.0)
}

/// Returns the mean squares with those of unseen inputs filled in; `None` if all are 0.
fn importance_of(mean_square: &[f32]) -> Option<Cow<'_, [f32]>> {
    if mean_square.iter().all(|&square| square > 0.0) {
        return Some(mean_square.into());
    }
    let mut filled: Vec<f64> = mean_square.iter().map(|&square| f64::from(square)).collect();
    fill_unseen(&mut filled);
    let is_known = filled.iter().any(|&square| square > 0.0);
    is_known.then(|| filled.into_iter().map(|square| square as f32).collect())
}

/// Returns `Σ m·(w - v)²`, summed in f64.
fn weighted_error<E>(
    values: &[f32],
    importance: &[f32],
    affine: Affine,
    grid: Grid,
    check_stop: &impl Fn() -> Result<(), E>,
) -> Result<f64, E> {
    let (scale, zero) = (affine.scale, f32::from(affine.zero));
    let (low, high) = (f32::from(grid.min_code()), f32::from(grid.max_code()));
    let mut sum = 0.0;
    for (values, importance) in values.chunks(CHECKED).zip(importance.chunks(CHECKED)) {
        check_stop()?;
        for (values, importance) in values.chunks(64).zip(importance.chunks(64)) {
            let error = |(&value, &importance): (&f32, &f32)| {
                let code = ((value / scale).round_ties_even() + zero).clamp(low, high);
                let apart = value - (code - zero) * scale;
                importance * apart * apart
            };
            sum += f64::from(values.iter().zip(importance).map(error).sum::<f32>());
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::GridKind;
    use std::convert::Infallible;

    fn found(values: &[f32], mean_square: Option<&[f32]>, grid: Grid) -> Affine {
        let Ok(affine) = weighted(WeightGroup { values, mean_square }, grid, &|| Ok::<(), Infallible>(()));
        affine
    }

    fn error(values: &[f32], importance: &[f32], affine: Affine, grid: Grid) -> f64 {
        let each = values.iter().zip(importance);
        each.map(|(&value, &importance)| {
            let apart = f64::from(value) - f64::from(affine.dequantize(affine.quantize(value, grid)));
            f64::from(importance) * apart * apart
        })
        .sum()
    }

    #[test]
    fn the_range_is_the_best_candidate() {
        let values: Vec<f32> = (0..96).map(|i| ((i * 37) % 101) as f32 / 50.0 - 0.7).collect();
        let importance: Vec<f32> = (0..96).map(|i| ((i * 53) % 17) as f32 / 4.0).collect();
        for (bits, kind) in [(4, GridKind::Symmetric), (3, GridKind::Asymmetric), (8, GridKind::SymmetricFull)] {
            let grid = Grid::new(bits, kind).unwrap();
            let least = (0..71)
                .map(|step| {
                    let share = 1.0 - step as f32 / 100.0;
                    error(&values, &importance, Affine::over(-0.7 * share, 1.3 * share, grid), grid)
                })
                .fold(f64::INFINITY, f64::min);
            let affine = found(&values, Some(&importance), grid);
            assert!(error(&values, &importance, affine, grid) <= least * (1.0 + 1e-4), "{bits} {kind:?}");
        }
    }

    #[test]
    fn an_outlier_whose_input_is_small_does_not_stretch_the_range() {
        let grid = Grid::new(4, GridKind::Symmetric).unwrap();
        let mut values = vec![0.1_f32; 64];
        (0..64).for_each(|i| values[i] = (i as f32 / 63.0 - 0.5) * 0.2);
        values[7] = 0.3;
        let mut importance = vec![1.0; 64];
        let even = found(&values, Some(&importance), grid);
        importance[7] = 1e-6;
        assert!(found(&values, Some(&importance), grid).scale < even.scale * 0.6);
        // Its input was never used, and may be.
        importance[7] = 0.0;
        assert_eq!(found(&values, Some(&importance), grid), even);
        // With mean squares of 0 and with none, the result is the plain least squared error.
        let plain = found(&values, None, grid);
        assert_eq!(found(&values, Some(&[0.0; 64]), grid), plain);
    }
}
