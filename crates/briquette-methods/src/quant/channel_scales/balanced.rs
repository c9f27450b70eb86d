//! Scales that balance the rounding errors of inputs and of weights.

use super::columns::ScaledColumns;

/// The exponent of input sizes: a little below the 1/2 of the derivation, because ranges follow the largest values.
pub const BALANCED_EXPONENT: f64 = 0.45;
/// Sizes below this share of the largest count as this.
const LEAST: f64 = 1e-4;

/// Returns `s = a^α / b^(1 - α)` with `a` the root mean squares of inputs and `b` those of weights.
///
/// Inputs are divided by `s`, and weights multiplied. If the range of a token and that of a row of weights are proportional to their
/// root mean squares, both rounding errors are proportional to `Σ (b s)² · Σ (a / s)²`. By the Cauchy-Schwarz inequality, that is
/// least for `s² = a / b`, which is α = 1/2.
pub fn balanced(columns: &ScaledColumns, alpha: f64) -> Vec<f64> {
    let [inputs, weights] = [columns.input_roots(), columns.weight_roots()].map(floored);
    inputs.iter().zip(&weights).map(|(input, weight)| input.powf(alpha) / weight.powf(1.0 - alpha)).collect()
}

fn floored(mut sizes: Vec<f64>) -> Vec<f64> {
    let largest = sizes.iter().copied().fold(0.0, f64::max);
    let least = if largest > 0.0 && largest.is_finite() { largest * LEAST } else { 1.0 };
    sizes.iter_mut().for_each(|size| *size = size.clamp(least, f64::MAX));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::InputStats;

    fn columns<'a>(layers: &'a [Vec<f32>], stats: &'a InputStats, units: &'a [usize]) -> ScaledColumns<'a> {
        ScaledColumns { layers, stats, units, n_units: units.len() }
    }

    #[test]
    fn the_product_of_both_errors_is_least() {
        let (n, units) = (8, (0..8).collect::<Vec<usize>>());
        let layers = [(0..5 * n).map(|at| ((at * 7919) % 1009) as f32 / 500.0 - 1.0).collect::<Vec<f32>>()];
        let mut stats = InputStats::empty(n, false);
        (stats.count, stats.sum_squares) = (2, (0..n).map(|at| 2.0 * 3_f64.powi(at as i32)).collect());
        let columns = columns(&layers, &stats, &units);
        let product = |scales: &[f64]| -> f64 {
            let [a, b] = [columns.input_roots(), columns.weight_roots()];
            let inputs: f64 = a.iter().zip(scales).map(|(a, s)| (a / s).powi(2)).sum();
            let weights: f64 = b.iter().zip(scales).map(|(b, s)| (b * s).powi(2)).sum();
            inputs * weights
        };
        let best = balanced(&columns, 0.5);
        for at in 0..n {
            for factor in [0.9, 1.1] {
                let mut other = best.clone();
                other[at] *= factor;
                assert!(product(&other) > product(&best), "{at} {factor}");
            }
        }
    }

    #[test]
    fn columns_without_inputs_or_weights_have_finite_scales() {
        let (n, units) = (4, (0..4).collect::<Vec<usize>>());
        let layers = [vec![0.0, 1.0, 2.0, 0.0, 0.0, -1.0, 2.0, 0.0]];
        let mut stats = InputStats::empty(n, false);
        (stats.count, stats.sum_squares) = (1, vec![1.0, 0.0, 4.0, 0.0]);
        for scales in [balanced(&columns(&layers, &stats, &units), BALANCED_EXPONENT), {
            let empty = InputStats::empty(n, false);
            balanced(&columns(&[vec![0.0; 8]], &empty, &units), BALANCED_EXPONENT)
        }] {
            assert!(scales.iter().all(|scale| scale.is_finite() && *scale > 0.0), "{scales:?}");
        }
    }
}
