//! A seeded random score: the baseline every other score must beat.

/// `score[i]` uniform in `[0, 1)`, a function of `seed` and the position alone.
///
/// `seed` should differ between tensors; `first` is the position of `scores[0]` in its tensor, so that a tensor scored
/// in pieces gets the scores of one scored whole. Source of the mixing: splitmix64 (Steele, Lea, Flood, 2014).
pub fn random(seed: u64, first: usize, scores: &mut [f32]) {
    for (i, score) in scores.iter_mut().enumerate() {
        let bits = splitmix64(seed.wrapping_add((first + i) as u64));
        *score = (bits >> 40) as f32 / (1_u32 << 24) as f32;
    }
}

fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
