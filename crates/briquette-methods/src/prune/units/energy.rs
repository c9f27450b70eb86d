//! Sums of magnitudes along an axis of a weight.

/// Adds the sum of `power(w)` for each index along an axis.
///
/// `values` are `[outer, sums.len(), inner]`.
///
/// # Panics
/// If the extents do not divide the values.
pub fn add_magnitudes(values: &[f32], inner: usize, power: impl Fn(f64) -> f64, sums: &mut [f64]) {
    let n = sums.len() * inner;
    assert!(n > 0 && values.len().is_multiple_of(n), "{} values in slices of {n}", values.len());
    for slice in values.chunks_exact(n) {
        for (part, sum) in slice.chunks_exact(inner).zip(sums.iter_mut()) {
            *sum += part.iter().map(|&value| power(f64::from(value))).sum::<f64>();
        }
    }
}

/// Adds `Σ_out w[out, j]² · e_j` for each input `j`, with its mean square or variance `e_j`; `values` are rows `[out, in]`.
///
/// # Panics
/// If there is not one energy and one sum for each input.
pub fn add_input_energies(values: &[f32], energies: &[f32], sums: &mut [f64]) {
    assert_eq!(energies.len(), sums.len(), "one statistic per input");
    for row in values.chunks_exact(sums.len().max(1)) {
        for ((value, square), sum) in row.iter().zip(energies).zip(sums.iter_mut()) {
            *sum += f64::from(*value) * f64::from(*value) * f64::from(*square);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_run_along_any_axis() {
        let values: Vec<f32> = (0..24).map(|i| if i % 2 == 0 { i as f32 } else { -(i as f32) }).collect();
        for (axis, inner) in [(0, 12), (1, 4), (2, 1)] {
            let extent = [2, 3, 4][axis];
            let mut sums = vec![0.5; extent];
            add_magnitudes(&values, inner, f64::abs, &mut sums);
            for (index, sum) in sums.iter().enumerate() {
                let expected: f64 = (0..24).filter(|at| at / inner % extent == index).map(|at| at as f64).sum();
                assert_eq!(*sum, 0.5 + expected, "{axis}");
            }
        }
    }

    #[test]
    fn inputs_weigh_squares() {
        let mut sums = [0.0; 2];
        add_input_energies(&[1.0, -2.0, 3.0, 4.0], &[2.0, 0.5], &mut sums);
        assert_eq!(sums, [20.0, 10.0]);
    }
}
