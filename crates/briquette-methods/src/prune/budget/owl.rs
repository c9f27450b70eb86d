//! OWL (outlier weighed layerwise sparsity): layers with more outliers keep more weights.

use super::Ratio;
use crate::prune::score::{Score, WeightSlice};

/// The number of weights that are scored at a time.
const PIECE: usize = 1 << 16;

/// Returns the share of a layer's weights with outlier Wanda scores. It is 0 if the layer has no weights.
///
/// An outlier score is above `times_mean` times the mean score of the layer (5 in the source). A layer is one
/// tensor, or all tensors of a transformer block, as in the source.
///
/// Source: Yin et al., "Outlier Weighed Layerwise Sparsity (OWL)", 2024, eq. 2, and `check_outlier_mean` of its
/// repository.
///
/// # Panics
/// If the input statistics of a tensor are missing, or their number of columns differs from the tensor's.
pub fn outlier_ratio(layer: &[WeightSlice], times_mean: f64) -> f64 {
    let n: usize = layer.iter().map(|weights| weights.values.len()).sum();
    let mut sum = 0.0;
    each_score(layer, |scores| sum += scores.iter().map(|&score| f64::from(score)).sum::<f64>());
    let border = times_mean * sum / n.max(1) as f64;
    let mut n_above = 0;
    each_score(layer, |scores| n_above += scores.iter().filter(|score| f64::from(**score) > border).count());
    n_above as f64 / n.max(1) as f64
}

/// Calls `see` with the Wanda scores of a layer's weights, up to [`PIECE`] at a time.
fn each_score(layer: &[WeightSlice], mut see: impl FnMut(&[f32])) {
    let mut scratch = Vec::new();
    for weights in layer {
        for (piece, values) in weights.values.chunks(PIECE).enumerate() {
            see(Score::Wanda.of(WeightSlice { values, first: weights.first + piece * PIECE, ..*weights }, &mut scratch));
        }
    }
}

/// Returns the sparsity of each layer, with an overall sparsity of `target`.
///
/// `share_l = t − 2λ·(outliers_l − min) / (max − min)`, clamped to 0 and 1. `t` is chosen so that the mean of
/// the shares, weighted by `sizes`, equals `target`. In the source all layers have the same size, and λ is
/// 0.08. If all layers have the same share of outliers, each gets `target`.
///
/// Source: Yin et al., "Outlier Weighed Layerwise Sparsity (OWL)", 2024, section 3.2, and `prune_wanda_outlier`
/// of its repository.
///
/// # Panics
/// If the lengths disagree, an outlier ratio is not finite, or `lambda` is negative or not finite.
pub fn owl(outliers: &[f64], sizes: &[usize], target: Ratio, lambda: f64) -> Vec<Ratio> {
    assert_eq!(outliers.len(), sizes.len(), "one size per layer");
    assert!(
        outliers.iter().all(|ratio| ratio.is_finite()) && lambda >= 0.0 && lambda.is_finite(),
        "outlier ratios and lambda are finite"
    );
    let least = outliers.iter().copied().fold(f64::INFINITY, f64::min);
    let span = outliers.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    if span <= 0.0 || sizes.iter().all(|&size| size == 0) {
        return vec![target; outliers.len()];
    }
    let spared: Vec<f64> = outliers.iter().map(|ratio| 2.0 * lambda * (ratio - least) / span).collect();
    let total: f64 = sizes.iter().map(|&size| size as f64).sum();
    let shares = |top: f64| spared.iter().map(move |spared| (top - spared).clamp(0.0, 1.0));
    let overall = |top: f64| shares(top).zip(sizes).map(|(share, &size)| share * size as f64).sum::<f64>() / total;
    // The overall sparsity rises with `top`, from 0 at 0 to 1 at the upper bound.
    let (mut low, mut high) = (0.0, 1.0 + 2.0 * lambda);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if overall(middle) < target.get() { low = middle } else { high = middle }
    }
    shares(high).map(Ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::InputView;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_reach_the_target_and_fall_with_outliers(
            layers in prop::collection::vec((0.0_f64..0.1, 1_usize..1000), 1..40), target in 0.0_f64..=1.0, lambda in 0.0_f64..0.5,
        ) {
            let (outliers, sizes): (Vec<f64>, Vec<usize>) = layers.into_iter().unzip();
            let shares = owl(&outliers, &sizes, Ratio::new(target).unwrap(), lambda);
            let total: usize = sizes.iter().sum();
            let overall = shares.iter().zip(&sizes).map(|(share, &size)| share.get() * size as f64).sum::<f64>() / total as f64;
            prop_assert!((overall - target).abs() < 1e-9, "{} {}", overall, target);
            for (i, a) in outliers.iter().enumerate() {
                prop_assert!((0.0..=1.0).contains(&shares[i].get()));
                for (j, b) in outliers.iter().enumerate() {
                    prop_assert!(a < b || shares[i] <= shares[j]);
                    prop_assert!((shares[i].get() - shares[j].get()).abs() <= 2.0 * lambda + 1e-9);
                }
            }
        }
    }

    #[test]
    fn shares_of_equal_layers_match_the_source() {
        // ratio = (ratio - min) / (max - min) * 2 lambda; kept = ratio - mean(ratio) + (1 - sparsity)
        let shares = owl(&[0.01, 0.02, 0.05], &[10; 3], Ratio::new(0.7).unwrap(), 0.08);
        let scaled = [0.0, 0.04, 0.16];
        for (share, scaled) in shares.iter().zip(scaled) {
            assert!((share.get() - (0.7 - scaled + 0.2 / 3.0)).abs() < 1e-12, "{shares:?}");
        }
        assert_eq!(owl(&[0.3; 4], &[1, 2, 3, 4], Ratio::new(0.7).unwrap(), 0.08), [Ratio::new(0.7).unwrap(); 4]);
        assert!(owl(&[], &[], Ratio::new(0.7).unwrap(), 0.08).is_empty());
    }

    #[test]
    fn outliers_are_counted_over_all_tensors_of_a_layer() {
        let inputs = InputView { rms: vec![1.0, 2.0], mean_square: vec![1.0, 4.0] };
        let mut large = vec![1.0; 200_000];
        large[150_001] = 4.0;
        large[0] = -4.0;
        let slice =
            |values| WeightSlice { values, first: 0, n_rows: values.len() / 2, n_cols: 2, inputs: Some(&inputs) };
        // The scores alternate between 1 and 2, except for one 8 and one 4; the mean is 1.5.
        assert_eq!(outlier_ratio(&[slice(&large)], 5.0), 1.0 / 200_000.0);
        let small = vec![0.0; 200_000];
        // The mean is halved, so the second outlier exceeds the threshold too.
        assert_eq!(outlier_ratio(&[slice(&large), slice(&small)], 5.0), 2.0 / 400_000.0);
        assert_eq!(outlier_ratio(&[], 5.0), 0.0);
    }
}
