//! A seeded random score: the baseline every other score must beat.

use briquette_core::random::uniform;

/// `score[i]` uniform in `[0, 1)`, a function of `seed` and the position alone.
///
/// `seed` should differ between tensors; `first` is the position of `scores[0]` in its tensor, so that a tensor scored
/// in pieces gets the scores of one scored whole.
pub fn random(seed: u64, first: usize, scores: &mut [f32]) {
    for (i, score) in scores.iter_mut().enumerate() {
        // The seed is a place too, as it always was: the masks of a seed stay what they are.
        *score = uniform(0, seed.wrapping_add((first + i) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_the_same_in_pieces_and_spread_evenly() {
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
