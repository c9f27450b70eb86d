//! N:M sparsity: of every m neighbouring inputs, n are kept.

use briquette_core::Mask;

/// Keeps the `n` largest of every `m` consecutive scores of a row, `[n_rows, n_cols]`.
///
/// Among equal scores, lower indices are dropped first. Source: Mishra et al., "Accelerating Sparse Deep Neural
/// Networks", 2021 (2:4).
///
/// # Panics
/// If `m` does not divide `n_cols`, or `n` is more than `m`.
pub fn n_of_m(scores: &[f32], n_rows: usize, n_cols: usize, n: usize, m: usize) -> Mask {
    assert_eq!(scores.len(), n_rows * n_cols, "whole rows of scores");
    let mut bits = vec![0; n_rows * Mask::row_bytes(n_cols)];
    if n_cols > 0 {
        for (scores, bits) in scores.chunks(n_cols).zip(bits.chunks_mut(Mask::row_bytes(n_cols))) {
            n_of_m_row(scores, n, m, bits);
        }
    }
    Mask::from_bits(n_rows, n_cols, bits)
}

/// Runs [`n_of_m`] on one row and writes the mask to `bits`.
///
/// # Panics
/// If `m` does not divide the row, or `n` is more than `m`.
pub fn n_of_m_row(scores: &[f32], n: usize, m: usize, bits: &mut [u8]) {
    assert!(n <= m && m > 0 && scores.len().is_multiple_of(m), "m divides the row and n is at most m");
    bits.fill(0);
    for (group, scores) in scores.chunks_exact(m).enumerate() {
        for (i, score) in scores.iter().enumerate() {
            let key = score.abs();
            // Scores that are kept before this one: larger scores, and equal scores of a higher index.
            let winners =
                scores.iter().enumerate().filter(|&(j, other)| other.abs().total_cmp(&key).then(j.cmp(&i)).is_gt());
            let keep = winners.count() < n;
            let bit = group * m + i;
            bits[bit / 8] |= u8::from(keep) << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_four_keeps_the_two_largest() {
        let mask = n_of_m(&[0.1, -0.9, 0.5, 0.2, 3.0, 3.0, 3.0, 0.0], 1, 8, 2, 4);
        let keep: Vec<bool> = (0..8).map(|col| mask.keeps(0, col)).collect();
        assert_eq!(
            keep,
            [false, true, true, false, false, true, true, false],
            "of three equal scores the first is dropped"
        );
    }

    #[test]
    fn every_group_keeps_exactly_n() {
        for (n, m) in [(0, 4), (1, 3), (2, 4), (4, 8), (4, 4)] {
            let scores: Vec<f32> = (0..5 * 3 * m).map(|i| ((i * 7919) % 31) as f32 - 15.0).collect();
            let mask = n_of_m(&scores, 5, 3 * m, n, m);
            for row in 0..5 {
                for group in 0..3 {
                    assert_eq!((0..m).filter(|i| mask.keeps(row, group * m + i)).count(), n);
                }
            }
        }
    }
}
