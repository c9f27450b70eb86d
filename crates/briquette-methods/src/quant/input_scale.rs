//! Vectors that multiply a layer's inputs before they are rounded; the weights are divided by them.

use crate::quant::unseen::fill_unseen;
use briquette_core::InputStats;

/// Steps of the largest input and weight in a code, for 8 bits with and without a zero point.
const INPUT_STEPS: f64 = 255.0;
const WEIGHT_STEPS: f64 = 127.0;
/// The smallest magnitude of a column, as a share of the largest.
const FLOOR: f64 = 1e-5;
/// Exponents that are tried: multiples of 1/20.
const N_EXPONENTS: usize = 20;

/// Chooses the vector for layers that share their inputs: `s_k = max|w_k|^(1-α) / max|x_k|^α`, `[inputs]`.
///
/// `matrices` are rows of weights, `[outputs, inputs]` each. The exponent α, from 0 to 1, has the smallest expected error of the
/// outputs if inputs have one 8-bit scale for all tokens and weights one scale a row:
/// `Δ²/12 · Σ (w/s)² + Σ_n δ_n²/12 · Σ_k s_k² · mean(x_k²)`, with `Δ = 2 max(s·|x|) / 255` and `δ_n = max|w_n/s| / 127`.
/// The vector is 1 throughout if no α has a smaller error than that. An input that was 0 throughout counts as the mean of the
/// others, because other data may use it.
///
/// Source: Xiao et al., "SmoothQuant", 2023, eq. 4; the search replaces its fixed α.
///
/// # Panics
/// If a matrix has no whole rows of as many inputs as the statistics.
pub fn input_scale(matrices: &[&[f32]], stats: &InputStats) -> Vec<f32> {
    let n_inputs = stats.n_inputs();
    let mut columns = ColumnFigures { max: vec![0.0; n_inputs], squares: vec![0.0; n_inputs] };
    for matrix in matrices {
        assert!(n_inputs > 0 && matrix.len().is_multiple_of(n_inputs), "whole rows of weights");
        matrix.chunks(n_inputs).for_each(|row| columns.add(row));
    }
    let mut inputs: Vec<f64> = stats.max.iter().map(|max| f64::from(*max)).collect();
    fill_unseen(&mut inputs);
    let inputs = floored(inputs);
    let weights = floored(columns.max.clone());
    let of_exponent = |alpha: f64| -> Vec<f64> {
        inputs.iter().zip(&weights).map(|(x, w)| w.powf(1.0 - alpha) / x.powf(alpha)).collect()
    };
    let error = |scale: &[f64]| expected_error(matrices, &columns, stats, scale);
    let mut best = vec![1.0; n_inputs];
    let mut least = error(&best);
    for step in 0..=N_EXPONENTS {
        let scale = of_exponent(step as f64 / N_EXPONENTS as f64);
        let found = error(&scale);
        if found < least {
            (best, least) = (scale, found);
        }
    }
    best.into_iter().map(|value| value as f32).collect()
}

/// The largest magnitude and the sum of squares of each column.
struct ColumnFigures {
    max: Vec<f64>,
    squares: Vec<f64>,
}

impl ColumnFigures {
    fn add(&mut self, row: &[f32]) {
        for ((max, square), weight) in self.max.iter_mut().zip(&mut self.squares).zip(row) {
            let size = f64::from(weight.abs());
            *max = max.max(size);
            *square += size * size;
        }
    }
}

fn floored(mut values: Vec<f64>) -> Vec<f64> {
    let largest = values.iter().copied().fold(0.0, f64::max);
    let floor = if largest > 0.0 && largest.is_finite() { largest * FLOOR } else { 1.0 };
    values.iter_mut().for_each(|value| *value = value.clamp(floor, f64::MAX));
    values
}

fn expected_error(matrices: &[&[f32]], columns: &ColumnFigures, stats: &InputStats, scale: &[f64]) -> f64 {
    let largest = stats.max.iter().zip(scale).map(|(x, s)| f64::from(*x) * s).fold(0.0, f64::max);
    let input_step = 2.0 * largest / INPUT_STEPS;
    let of_inputs: f64 = columns.squares.iter().zip(scale).map(|(square, s)| square / (s * s)).sum();
    let count = stats.count.max(1) as f64;
    let energy: f64 = stats.sum_squares.iter().zip(scale).map(|(sum, s)| sum / count * s * s).sum();
    let rows = matrices.iter().flat_map(|matrix| matrix.chunks(scale.len()));
    let of_row = |row: &[f32]| row.iter().zip(scale).map(|(w, s)| f64::from(w.abs()) / s).fold(0.0, f64::max);
    let of_weights: f64 = rows.map(|row| (of_row(row) / WEIGHT_STEPS).powi(2)).sum();
    (input_step * input_step * of_inputs + of_weights * energy) / 12.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(max: &[f32]) -> InputStats {
        let sum_squares = max.iter().map(|max| f64::from(*max).powi(2) * 0.1).collect();
        InputStats { count: 1, sum_squares, max: max.to_vec(), ..InputStats::empty(max.len(), false) }
    }

    /// The largest error of `x · wᵀ` where inputs have one scale and rows of weights one each.
    fn worst_error(inputs: &[Vec<f32>], weights: &[f32], scale: &[f32]) -> f32 {
        let n = scale.len();
        let rounded = |values: &[f32], steps: f32| -> Vec<f32> {
            let step = values.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / steps;
            values.iter().map(|value| (value / step).round() * step).collect()
        };
        let scaled: Vec<f32> = inputs.iter().flat_map(|x| x.iter().zip(scale).map(|(x, s)| x * s)).collect();
        let codes = rounded(&scaled, 127.5);
        let mut worst = 0.0_f32;
        for (x, codes) in inputs.iter().zip(codes.chunks(n)) {
            for row in weights.chunks(n) {
                let divided: Vec<f32> = row.iter().zip(scale).map(|(w, s)| w / s).collect();
                let exact: f32 = x.iter().zip(row).map(|(x, w)| x * w).sum();
                let found: f32 = codes.iter().zip(rounded(&divided, 127.0)).map(|(x, w)| x * w).sum();
                worst = worst.max((exact - found).abs());
            }
        }
        worst
    }

    #[test]
    fn an_outlying_input_is_scaled_down_and_the_error_falls() {
        let n = 16;
        let max: Vec<f32> = (0..n).map(|at| if at == 3 { 100.0 } else { 1.0 }).collect();
        let inputs: Vec<Vec<f32>> =
            (0..8).map(|t| (0..n).map(|k| max[k] * ((t * 7 + k * 5) % 13) as f32 / 13.0).collect()).collect();
        let weights: Vec<f32> = (0..4 * n).map(|at| ((at * 11) % 17) as f32 / 17.0 - 0.4).collect();
        let scale = input_scale(&[&weights[..2 * n], &weights[2 * n..]], &stats(&max));
        assert!(scale[3] < scale[0] / 4.0, "{scale:?}");
        let [before, after] = [vec![1.0; n], scale].map(|scale| worst_error(&inputs, &weights, &scale));
        assert!(after < before / 2.0, "{before} {after}");
    }

    #[test]
    fn an_input_that_was_never_used_has_an_ordinary_scale() {
        let n = 16;
        let max: Vec<f32> = (0..n).map(|at| if at == 3 { 100.0 } else { 1.0 }).collect();
        let unseen: Vec<f32> = max.iter().enumerate().map(|(at, max)| if at == 7 { 0.0 } else { *max }).collect();
        let weights: Vec<f32> = (0..4 * n).map(|at| ((at * 11) % 17) as f32 / 17.0 - 0.4).collect();
        let [seen, unseen] = [max, unseen].map(|max| input_scale(&[&weights], &stats(&max)));
        assert!((unseen[7] / seen[7]).ln().abs() < 2.0, "{} {}", unseen[7], seen[7]);
    }

    #[test]
    fn equal_columns_keep_their_scale_and_empty_ones_stay_finite() {
        let weights = [0.5_f32; 12];
        let scale = input_scale(&[&weights], &stats(&[2.0; 4]));
        assert!(scale.iter().all(|value| (value / scale[0] - 1.0).abs() < 1e-6), "{scale:?}");
        for max in [[0.0; 4], [0.0, 1.0, 2.0, 0.0]] {
            assert!(input_scale(&[&weights], &stats(&max)).iter().all(|value| value.is_finite() && *value > 0.0));
        }
        assert!(input_scale(&[&[0.0; 8]], &stats(&[1.0; 4])).iter().all(|value| value.is_finite() && *value > 0.0));
    }
}
