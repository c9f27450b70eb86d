//! SmoothQuant: moves the range of inputs into the weights.

use super::columns::ScaledColumns;

/// Ranges of weights below this count as this, and so do scales.
const LEAST: f64 = 1e-5;
/// The number of steps between the exponents 0 and 1 of a search.
const N_STEPS: usize = 20;

/// Returns the scales of SmoothQuant: `s = max|x|^α / max|w|^(1 - α)`, at least 1e-5.
///
/// `inputs` and `weights` have the largest magnitude of each channel. A channel without inputs keeps the scale 1.
/// Source: Xiao et al., "SmoothQuant", 2023, eq. 4.
///
/// # Panics
/// If there are different numbers of channels.
pub fn smooth(inputs: &[f64], weights: &[f64], alpha: f64) -> Vec<f64> {
    assert_eq!(inputs.len(), weights.len(), "one range for each channel");
    let scale = |(&input, &weight): (&f64, &f64)| match input > 0.0 {
        // A channel that no input used may be used later, so its range is unknown.
        false => 1.0,
        true => (input.powf(alpha) / weight.max(LEAST).powf(1.0 - alpha)).max(LEAST),
    };
    inputs.iter().zip(weights).map(scale).collect()
}

/// Returns the exponent with the smallest predicted error of int8 inputs and weights, with its scales.
///
/// The exponents are 0, 0.05, .. 1. `None` if no scale predicts a smaller error than 1 for all channels.
pub fn best_smooth(columns: &ScaledColumns) -> Option<(f64, Vec<f64>)> {
    let (inputs, weights) = (columns.input_ranges(), columns.weight_ranges());
    let mut best = (error(columns, &vec![1.0; columns.n_units]), None);
    for step in 0..=N_STEPS {
        let alpha = step as f64 / N_STEPS as f64;
        let scales = smooth(&inputs, &weights, alpha);
        let found = error(columns, &scales);
        if found < best.0 {
            best = (found, Some((alpha, scales)));
        }
    }
    best.1
}

/// Returns the error of outputs if inputs have one int8 step and each row of weights has one, times `12 · 127²`.
///
/// `max(X / s)² · Σ (w s)² + Σ over rows of max|w s|² · Σ E[x²] / s²`: rounding errors are independent and uniform. `X` are the largest
/// inputs, so the first term is an upper bound for steps per token.
fn error(columns: &ScaledColumns, scales: &[f64]) -> f64 {
    let scales: Vec<f32> = columns.expanded(scales).into_iter().map(|scale| scale as f32).collect();
    let count = columns.stats.count.max(1) as f64;
    let (mut range, mut energy) = (0.0_f64, 0.0);
    for (column, scale) in scales.iter().map(|scale| f64::from(*scale)).enumerate() {
        range = range.max(f64::from(columns.stats.max[column]) / scale);
        energy += columns.stats.sum_squares[column] / count / (scale * scale);
    }
    let (mut squares, mut maxima) = (0.0, 0.0);
    for row in columns.layers.iter().flat_map(|layer| layer.chunks_exact(scales.len().max(1))) {
        let (mut sum, mut most) = (0.0_f32, 0.0_f32);
        for (weight, scale) in row.iter().zip(&scales) {
            let scaled = (weight * scale).abs();
            sum += scaled * scaled;
            most = most.max(scaled);
        }
        squares += f64::from(sum);
        maxima += f64::from(most) * f64::from(most);
    }
    range * range * squares + maxima * energy
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::InputStats;

    #[test]
    fn scales_equal_the_formula() {
        let scales = smooth(&[4.0, 9.0, 0.0, 1e-12], &[1.0, 4.0, 2.0, 1e6], 0.5);
        assert_eq!(scales[..3], [2.0, 1.5, 1.0]);
        assert_eq!(scales[3], LEAST);
        assert_eq!(smooth(&[4.0], &[2.0], 1.0), [4.0]);
        assert_eq!(smooth(&[4.0], &[2.0], 0.0), [0.5]);
    }

    #[test]
    fn outliers_of_inputs_move_into_weights() {
        let n = 32;
        let number = |at: usize| ((at * 7919) % 101) as f32 / 50.0 - 1.0;
        let layers = [(0..16 * n).map(number).collect::<Vec<f32>>()];
        let (units, mut stats) = ((0..n).collect::<Vec<usize>>(), InputStats::empty(n, false));
        (stats.count, stats.max, stats.sum_squares) = (10, vec![1.0; n], vec![2.0; n]);
        let columns = |stats| ScaledColumns { layers: &layers, stats, units: &units, n_units: n };
        (stats.max[3], stats.sum_squares[3]) = (60.0, 2.0 * 3600.0);
        let (alpha, scales) = best_smooth(&columns(&stats)).unwrap();
        assert!(alpha > 0.3 && scales[3] > 3.0 * scales[4], "{alpha} {scales:?}");
        let plain = error(&columns(&stats), &vec![1.0; n]);
        assert!(error(&columns(&stats), &scales) < 0.2 * plain);
    }
}
