//! Which weights of a tensor compete, and how many of them are dropped.

use super::{Ratio, select};
use briquette_core::Mask;

/// Which weights of a tensor compete, and how many of them are dropped.
///
/// The amount is a [`Ratio`] of the competing weights in settings, and their number in decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparsityPattern<A = usize> {
    /// This much of all weights.
    Unstructured(A),
    /// This much of the inputs of each output, which is a row.
    PerRow(A),
    /// All except `n` of every `m` consecutive inputs.
    NOfM {
        /// Number of kept inputs.
        n: usize,
        /// Number of inputs in a run; it must divide the row.
        m: usize,
    },
}

impl<A> SparsityPattern<A> {
    /// The largest `m` of settings.
    pub const MAX_RUN: usize = 256;

    /// Returns an N:M pattern; `None` unless `0 < n < m <= 256`.
    pub fn n_of_m(n: usize, m: usize) -> Option<Self> {
        (n > 0 && n < m && m <= Self::MAX_RUN).then_some(Self::NOfM { n, m })
    }

    /// Returns whether each row can be decided without the others.
    pub fn is_by_row(&self) -> bool {
        matches!(self, Self::PerRow(_) | Self::NOfM { .. })
    }
}

impl SparsityPattern<Ratio> {
    /// Returns the pattern with numbers of weights, for `[n_rows, n_cols]`. See [`Ratio::of`].
    pub fn of(self, n_rows: usize, n_cols: usize) -> SparsityPattern {
        match self {
            Self::Unstructured(ratio) => SparsityPattern::Unstructured(ratio.of(n_rows * n_cols)),
            Self::PerRow(ratio) => SparsityPattern::PerRow(ratio.of(n_cols)),
            Self::NOfM { n, m } => SparsityPattern::NOfM { n, m },
        }
    }
}

impl SparsityPattern {
    /// Returns the number of dropped weights of `[n_rows, n_cols]`.
    pub fn n_dropped(self, n_rows: usize, n_cols: usize) -> usize {
        match self {
            Self::Unstructured(n_drop) => n_drop,
            Self::PerRow(n_drop) => n_rows * n_drop,
            Self::NOfM { n, m } => n_rows * n_cols - n_rows * n_cols / m * n,
        }
    }

    /// Drops the smallest scores of `[n_rows, n_cols]`. Ties drop the lower index.
    ///
    /// # Panics
    /// If the lengths disagree, more weights are dropped than there are, or `m` does not divide a row.
    pub fn mask(self, scores: &[f32], n_rows: usize, n_cols: usize) -> Mask {
        match self {
            Self::Unstructured(n_drop) => select::smallest(scores, n_rows, n_cols, n_drop),
            Self::PerRow(n_drop) => {
                assert_eq!(scores.len(), n_rows * n_cols, "whole rows of scores");
                let (mut bits, mut keys) = (vec![0; n_rows * Mask::row_bytes(n_cols)], Vec::new());
                let rows = scores.chunks(n_cols.max(1)).zip(bits.chunks_mut(Mask::row_bytes(n_cols).max(1)));
                rows.for_each(|(scores, bits)| select::smallest_of_each(scores, n_cols, n_drop, &mut keys, bits));
                Mask::from_bits(n_rows, n_cols, bits)
            }
            Self::NOfM { n, m } => select::n_of_m(scores, n_rows, n_cols, n, m),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::score;

    #[test]
    fn masks_drop_the_number_of_weights_and_the_smallest_of_their_group() {
        let (n_rows, n_cols) = (6, 45);
        let mut scores = vec![0.0; n_rows * n_cols];
        score::random(3, 0, &mut scores);
        let share = Ratio::new(0.3).unwrap();
        for pattern in
            [SparsityPattern::Unstructured(share), SparsityPattern::PerRow(share), SparsityPattern::NOfM { n: 2, m: 5 }]
        {
            let counts = pattern.of(n_rows, n_cols);
            let mask = counts.mask(&scores, n_rows, n_cols);
            assert_eq!(counts.n_dropped(n_rows, n_cols), scores.len() - mask.n_kept(), "{pattern:?}");
            // The weights that compete: all, those of a row, or those of a run.
            let size = match pattern {
                SparsityPattern::Unstructured(_) => scores.len(),
                SparsityPattern::PerRow(_) => n_cols,
                SparsityPattern::NOfM { m, .. } => m,
            };
            assert_eq!(pattern.is_by_row(), size <= n_cols);
            for (group, scores) in scores.chunks(size).enumerate() {
                let keeps = |i: usize| mask.keeps((group * size + i) / n_cols, (group * size + i) % n_cols);
                let of = |kept: bool| (0..size).filter(move |&i| keeps(i) == kept).map(|i| scores[i]);
                assert!(of(false).fold(0.0, f32::max) <= of(true).fold(1.0, f32::min), "{pattern:?}");
            }
        }
    }

    #[test]
    fn a_pattern_of_settings_keeps_some_and_drops_some() {
        assert_eq!(SparsityPattern::<Ratio>::n_of_m(2, 4), Some(SparsityPattern::NOfM { n: 2, m: 4 }));
        for (n, m) in [(0, 4), (4, 4), (5, 4), (1, 257)] {
            assert_eq!(SparsityPattern::<Ratio>::n_of_m(n, m), None, "{n}:{m}");
        }
    }
}
