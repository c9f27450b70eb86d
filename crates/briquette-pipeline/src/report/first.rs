//! Selects the first few of many indices.

use std::cmp::Ordering;

/// Returns the first `n` indices in the order of `compare`, in the same order as a stable sort.
///
/// Only the first `n` are sorted.
pub(super) fn first_by(
    places: impl Iterator<Item = usize>,
    n: usize,
    compare: impl Fn(usize, usize) -> Ordering,
) -> Vec<usize> {
    let mut places: Vec<usize> = places.collect();
    let compare = |a: &usize, b: &usize| compare(*a, *b).then(a.cmp(b));
    if (1..places.len()).contains(&n) {
        places.select_nth_unstable_by(n - 1, compare);
    }
    places.truncate(n);
    places.sort_unstable_by(compare);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_equal_a_stable_sort() {
        let keys: Vec<usize> = (0..500).map(|i| i * 7919 % 23).collect();
        let mut sorted: Vec<usize> = (0..keys.len()).collect();
        sorted.sort_by_key(|&place| keys[place]);
        for n in [0, 1, 2, 22, 23, 499, 500, 501] {
            let found = first_by(0..keys.len(), n, |a, b| keys[a].cmp(&keys[b]));
            assert_eq!(found, sorted[..n.min(keys.len())], "{n}");
        }
        assert_eq!(first_by(0..0, 3, |_, _| Ordering::Equal), [0; 0]);
    }
}
