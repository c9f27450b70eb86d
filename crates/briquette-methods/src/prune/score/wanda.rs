//! Wanda: weight magnitude times the norm of the layer input.

/// Computes `score[o, i] = |w[o, i]| * sqrt(mean over inputs of x[i]²)`.
///
/// `rms` has one value per column. `weights[0]` is in column `first`, and rows are contiguous. A column whose
/// input was never observed scores 0, so its weights are dropped first. Scores are comparable only within a
/// row, so selections are by row. Source: Sun et al., "A Simple and Effective Pruning Approach for Large
/// Language Models", 2023, eq. 1.
///
/// # Panics
/// If there are no columns.
pub fn wanda(weights: &[f32], first: usize, rms: &[f32], scores: &mut [f32]) {
    let (mut weights, mut scores, mut first) = (weights, scores, first);
    while !weights.is_empty() {
        let n = weights.len().min(rms.len() - first);
        let (row, rest) = std::mem::take(&mut scores).split_at_mut(n);
        for ((score, weight), size) in row.iter_mut().zip(&weights[..n]).zip(&rms[first..]) {
            *score = weight.abs() * size;
        }
        (weights, scores, first) = (&weights[n..], rest, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_independent_of_splits() {
        let weights: Vec<f32> = (0..70).map(|i| i as f32 - 35.0).collect();
        let rms: Vec<f32> = (0..7).map(|i| i as f32 * 0.5).collect();
        let expected: Vec<f32> = weights.iter().enumerate().map(|(i, weight)| weight.abs() * rms[i % 7]).collect();
        for cut in [0, 1, 7, 10, 33, 70] {
            let mut scores = vec![f32::NAN; 70];
            let (before, after) = scores.split_at_mut(cut);
            wanda(&weights[..cut], 0, &rms, before);
            wanda(&weights[cut..], cut % 7, &rms, after);
            assert_eq!(scores, expected);
        }
    }
}
