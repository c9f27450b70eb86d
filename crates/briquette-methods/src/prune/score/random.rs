//! A seeded random score: the baseline for every other score.

use briquette_core::random::uniform;

/// Fills `scores` with uniform values in `[0, 1)` that depend only on `seed` and the index.
///
/// `seed` should differ between tensors. `first` is the index of `scores[0]` in its tensor, so that the scores
/// do not depend on how the tensor is split.
pub fn random(seed: u64, first: usize, scores: &mut [f32]) {
    for (i, score) in scores.iter_mut().enumerate() {
        // The seed is added to the index. Changing this would change the masks of existing seeds.
        *score = uniform(0, seed.wrapping_add((first + i) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_uniform_and_independent_of_splits() {
        let (mut whole, mut tail) = (vec![0.0; 10_000], vec![0.0; 4_000]);
        random(7, 0, &mut whole);
        random(7, 6_000, &mut tail);
        assert_eq!(whole[6_000..], tail);
        let mean = whole.iter().sum::<f32>() / whole.len() as f32;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!(whole.iter().all(|score| (0.0..1.0).contains(score)));
        random(8, 0, &mut tail);
        assert_ne!(whole[..4_000], tail);
    }
}
