//! Bias correction: the mean error that new weights cause at an output.

/// Returns the mean error of an output: `Σ_i (ŵ[i]·x̂[i] - w[i]·x[i])`, with the means `x` of the inputs before and `x̂` after a change.
///
/// A bias that is smaller by this error, `b' = b - (Ŵ - W)·E[x]`, preserves the mean of the output. `row` has the weights before, `new`
/// those after. `means` are `x` and `x̂`, each with one mean for the same number of consecutive weights: for each input, or for each
/// input channel of a kernel. Sums are in f64.
///
/// Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, section 4.2.
///
/// # Panics
/// If the numbers of weights and of means disagree.
pub fn mean_error(row: &[f32], new: impl ExactSizeIterator<Item = f64>, [before, after]: [&[f64]; 2]) -> f64 {
    assert_eq!((row.len(), before.len()), (new.len(), after.len()), "a new weight for each weight, and two means");
    let n_each = row.len() / before.len().max(1);
    assert_eq!(n_each * before.len(), row.len(), "as many weights for each mean");
    let of = |(at, (w, new)): (usize, (&f32, f64))| new * after[at / n_each] - f64::from(*w) * before[at / n_each];
    row.iter().zip(new).enumerate().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_without_the_error_preserves_the_mean_output() {
        let inputs = [[1.0, -2.0, 0.5], [3.0, 0.25, 4.0], [-1.5, 7.0, 0.0]];
        let (row, new) = ([0.3_f32, -1.2, 2.0], [0.25_f64, -1.0, 2.5]);
        let mean = |column: usize| inputs.iter().map(|x| x[column]).sum::<f64>() / 3.0;
        let means = [mean(0), mean(1), mean(2)];
        let output = |weights: &[f64]| {
            inputs.iter().map(|x| x.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>()).sum::<f64>() / 3.0
        };
        let error = mean_error(&row, new.into_iter(), [&means, &means]);
        let expected = output(&new) - output(&row.map(f64::from));
        assert!((error - expected).abs() < 1e-12, "{error} and {expected}");
        assert_eq!(mean_error(&row, row.map(f64::from).into_iter(), [&means, &means]), 0.0);
    }

    #[test]
    fn a_mean_belongs_to_all_positions_of_a_kernel() {
        let (row, new) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1.5, 2.0, 2.5, 4.0, 5.0, 7.0]);
        let of_channels = mean_error(&row, new.into_iter(), [&[2.0, -1.0], &[3.0, -2.0]]);
        let of_inputs = [[2.0, 2.0, 2.0, -1.0, -1.0, -1.0], [3.0, 3.0, 3.0, -2.0, -2.0, -2.0]];
        assert_eq!(of_channels, mean_error(&row, new.into_iter(), [&of_inputs[0], &of_inputs[1]]));
        assert_eq!(of_channels, (6.0 * 3.0 - 6.0 * 2.0) - (16.0 * 2.0 - 15.0));
        assert_eq!(mean_error(&[], std::iter::empty(), [&[], &[]]), 0.0);
    }
}
