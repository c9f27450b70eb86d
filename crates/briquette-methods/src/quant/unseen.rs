//! Inputs that were 0 for all calibration data, and may be used by other data.

/// Replaces sizes of 0 by the mean of the others, if there are any.
pub(crate) fn fill_unseen(sizes: &mut [f64]) {
    let seen = sizes.iter().filter(|size| **size > 0.0);
    let mean = seen.clone().sum::<f64>() / seen.count() as f64;
    if mean.is_finite() {
        sizes.iter_mut().filter(|size| **size == 0.0).for_each(|size| *size = mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_inputs_count_as_the_mean_of_the_others() {
        let filled = |mut sizes: Vec<f64>| {
            fill_unseen(&mut sizes);
            sizes
        };
        assert_eq!(filled(vec![0.0, 1.0, 3.0, 0.0]), [2.0, 1.0, 3.0, 2.0]);
        assert_eq!(filled(vec![0.0; 2]), [0.0; 2]);
        assert_eq!(filled(Vec::new()), [0.0; 0]);
    }
}
