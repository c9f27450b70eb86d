//! Channel groups of a convolution, whose inputs differ.

use briquette_core::InputStats;
use briquette_methods::prune::SparsityPattern;
use briquette_methods::reconstruct::FactorOutcome;
use std::borrow::Cow;
use std::ops::Range;

/// The rows of a channel group, and the statistics of their inputs.
pub(super) struct GroupInputs<'a> {
    pub(super) rows: Range<usize>,
    pub(super) stats: Cow<'a, InputStats>,
}

impl<'a> GroupInputs<'a> {
    /// Splits the rows of an `[n_rows, n_cols]` tensor by channel group; most tensors have one group.
    pub(super) fn of(stats: &'a InputStats, [n_rows, n_cols]: [usize; 2]) -> Vec<Self> {
        let n_groups = stats.n_groups(n_cols);
        if n_groups == 1 {
            return vec![Self { rows: 0..n_rows, stats: Cow::Borrowed(stats) }];
        }
        let size = n_rows / n_groups;
        let group = |group: usize| Self {
            rows: group * size..(group + 1) * size,
            stats: Cow::Owned(stats.of_group(group, n_cols)),
        };
        (0..n_groups).map(group).collect()
    }
}

/// Returns the part of a pattern for some of `n_rows` rows. Counts of consecutive parts add up to the whole count.
pub(super) fn pattern_of(pattern: SparsityPattern, rows: &Range<usize>, n_rows: usize) -> SparsityPattern {
    let before = |n_drop: usize, row: usize| (n_drop as u128 * row as u128 / n_rows.max(1) as u128) as usize;
    match pattern {
        SparsityPattern::Unstructured(n_drop) => {
            SparsityPattern::Unstructured(before(n_drop, rows.end) - before(n_drop, rows.start))
        }
        other => other,
    }
}

/// Joins the outcomes of all groups: the largest damping, all dead inputs, and a fallback if every group fell back.
pub(super) fn joined(outcomes: &[FactorOutcome]) -> Option<FactorOutcome> {
    let first = *outcomes.first()?;
    let all = outcomes.iter().all(|outcome| outcome.fallback.is_some());
    Some(FactorOutcome {
        damping: outcomes.iter().map(|outcome| outcome.damping).fold(0.0, f64::max),
        n_dead: outcomes.iter().map(|outcome| outcome.n_dead).sum(),
        fallback: first.fallback.filter(|_| all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_count_add_up_to_it() {
        for (n_drop, n_rows, n_groups) in [(0, 6, 3), (7, 6, 3), (432, 96, 96), (431, 96, 32), (864, 96, 96)] {
            let size = n_rows / n_groups;
            let of = |group: usize| {
                let rows = group * size..(group + 1) * size;
                match pattern_of(SparsityPattern::Unstructured(n_drop), &rows, n_rows) {
                    SparsityPattern::Unstructured(n_drop) => n_drop,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!((0..n_groups).map(of).sum::<usize>(), n_drop);
            assert!((0..n_groups).all(|group| of(group) <= n_drop.div_ceil(n_groups)));
        }
        assert_eq!(pattern_of(SparsityPattern::PerRow(3), &(2..4), 8), SparsityPattern::PerRow(3));
    }
}
