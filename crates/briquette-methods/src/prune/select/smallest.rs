//! The k smallest scores.

use super::{Scores, Selector, Threshold};
use briquette_core::{Mask, simd};

/// Returns the threshold that drops exactly the `n_drop` smallest scores; ties drop the lower index.
///
/// # Panics
/// If there are fewer than `n_drop` scores.
pub fn threshold_of(scores: &[f32], n_drop: usize) -> Threshold {
    assert!(n_drop <= scores.len(), "n_drop exceeds the number of scores");
    let found = Selector::default().threshold(scores.len(), n_drop, |each| {
        each(Scores::F32(scores));
        Ok::<(), std::convert::Infallible>(())
    });
    match found {
        Ok(threshold) => threshold,
        Err(never) => match never {},
    }
}

/// Drops exactly the `n_drop` scores of smallest magnitude, `[n_rows, n_cols]`.
///
/// Ties drop the lower index, so that the result is reproducible. The mask equals that of
/// `torch.nn.utils.prune.l1_unstructured` if no two magnitudes tie at the threshold.
///
/// # Panics
/// If the lengths disagree, or `n_drop` is more than the number of scores.
pub fn smallest(scores: &[f32], n_rows: usize, n_cols: usize, n_drop: usize) -> Mask {
    assert_eq!(scores.len(), n_rows * n_cols, "whole rows of scores");
    let Threshold { key, mut n_ties } = threshold_of(scores, n_drop);
    let mut bits = vec![0; n_rows * Mask::row_bytes(n_cols)];
    if n_cols > 0 {
        for (scores, bits) in scores.chunks(n_cols).zip(bits.chunks_mut(Mask::row_bytes(n_cols))) {
            simd::keep_above(scores, key, &mut n_ties, bits);
        }
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::Histogram;
    use proptest::prelude::*;

    /// Sorts by magnitude and then index, and drops the first `n_drop`.
    fn reference(scores: &[f32], n_drop: usize) -> Vec<bool> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[a].abs().total_cmp(&scores[b].abs()).then(a.cmp(&b)));
        let mut keep = vec![true; scores.len()];
        order[..n_drop].iter().for_each(|&index| keep[index] = false);
        keep
    }

    proptest! {
        #[test]
        fn exactly_the_smallest_are_dropped(
            scores in prop::collection::vec(prop_oneof![-1.0_f32..1.0, Just(0.25), Just(-0.25), Just(0.0)], 1..300),
            fraction in 0.0_f64..=1.0,
        ) {
            let n_drop = (fraction * scores.len() as f64) as usize;
            for n_cols in [1, scores.len()] {
                let mask = smallest(&scores, scores.len() / n_cols, n_cols, n_drop);
                let keep: Vec<bool> = (0..scores.len()).map(|i| mask.keeps(i / n_cols, i % n_cols)).collect();
                prop_assert_eq!(keep, reference(&scores, n_drop));
            }
        }

        #[test]
        fn histograms_of_pieces_add_up(scores in prop::collection::vec(-1.0_f32..1.0, 2..200), cut in 0.0_f64..1.0) {
            let (left, right) = scores.split_at((cut * scores.len() as f64) as usize);
            let n_drop = scores.len() / 2;
            let count = |mut histogram: Histogram, scores: &[f32]| { histogram.count(scores); histogram };
            let mut pass = count(Histogram::coarse(), left).merge(count(Histogram::coarse(), right));
            if let Some(k) = pass.refine(n_drop) {
                let mut pass = count(pass.clone(), left).merge(count(pass, right));
                prop_assert_eq!(pass.threshold(k), threshold_of(&scores, n_drop));
            }
        }
    }

    #[test]
    fn scores_of_sixteen_bits_need_one_pass_only() {
        let scores: Vec<f32> = (0..1000).map(|i| f32::from_bits(0x3f00_0000 + (((i * 7919) % 300) << 16))).collect();
        let mut histogram = Histogram::coarse();
        histogram.count(&scores);
        assert_eq!(histogram.coarse_threshold(400), Some(threshold_of(&scores, 400)));
        assert_eq!(histogram.coarse_threshold(0), None);
    }

    #[test]
    fn dropping_none_or_all_works() {
        let scores = [1.0, -2.0, f32::INFINITY, 0.0];
        assert_eq!(smallest(&scores, 2, 2, 0).n_kept(), 4);
        assert_eq!(smallest(&scores, 2, 2, 4).n_kept(), 0);
        assert_eq!(smallest(&[], 0, 3, 0).n_kept(), 0);
    }
}
