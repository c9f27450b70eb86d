//! The Pareto front: models that no other model beats in bytes and quality.

/// Returns the indices of the points (bytes, value) on the Pareto front, ordered by bytes.
///
/// A point is on the front if no other point is at least as good in both and better in one. Equal points are
/// all on the front, in their order.
pub(super) fn best(points: &[(u64, f64)], is_more_better: bool) -> Vec<usize> {
    let gain = |place: usize| if is_more_better { points[place].1 } else { -points[place].1 };
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| points[a].0.cmp(&points[b].0).then(gain(b).total_cmp(&gain(a))));
    let mut best: Vec<usize> = Vec::new();
    for place in order {
        // Earlier points are at most as large, and the last point on the front is the best of them.
        let is_best = best.last().is_none_or(|&last| gain(place) > gain(last) || points[place] == points[last]);
        if is_best {
            best.push(place);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the same points by definition.
    fn by_definition(points: &[(u64, f64)], is_more_better: bool) -> Vec<usize> {
        let is_no_worse = |a: f64, b: f64| if is_more_better { a >= b } else { a <= b };
        let beats = |a: &(u64, f64), b: &(u64, f64)| a.0 <= b.0 && is_no_worse(a.1, b.1) && a != b;
        let is_beaten = |point: &(u64, f64)| points.iter().any(|other| beats(other, point));
        let mut found: Vec<usize> = (0..points.len()).filter(|&place| !is_beaten(&points[place])).collect();
        found.sort_by_key(|&place| points[place].0);
        found
    }

    #[test]
    fn the_front_has_the_points_that_no_other_beats() {
        let points = [(6, 0.90), (7, 0.80), (8, 0.95), (8, 0.93), (12, 0.95), (20, 0.99)];
        assert_eq!(best(&points, true), [0, 2, 5]);
        assert_eq!(best(&points, false), [0, 1], "lower errors are better");
    }

    #[test]
    fn equal_points_and_a_single_point_are_on_the_front() {
        assert_eq!(best(&[(5, 0.5), (9, 0.5), (5, 0.5)], true), [0, 2]);
        assert_eq!(best(&[(5, 0.5), (9, 0.5), (5, 0.5)], false), [0, 2]);
        assert_eq!(best(&[(5, -0.0), (5, 0.0)], true).len(), 2);
        assert_eq!((best(&[(5, 0.5)], true), best(&[], true)), (vec![0], vec![]));
    }

    #[test]
    fn the_front_equals_its_definition() {
        let mut state = 7_u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for n in [1, 2, 3, 10, 31, 100] {
            for range in [2, 5, 50] {
                let points: Vec<(u64, f64)> = (0..n).map(|_| (next(range), next(range) as f64 - 1.0)).collect();
                for is_more_better in [true, false] {
                    assert_eq!(best(&points, is_more_better), by_definition(&points, is_more_better), "{points:?}");
                }
            }
        }
    }
}
