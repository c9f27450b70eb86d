//! Inputs that programs compute: relative positions, and masks of windows. See [`InputSource`](crate::InputSource).

/// Returns the number of each relative position in a square window, `[patches, patches]`, row by row.
///
/// For `w = window`: `(query row - key row + w - 1) · (2 w - 1) + query column - key column + w - 1`.
pub fn window_distances(window: usize) -> Vec<i64> {
    let n = window * window;
    let number = |query: usize, key: usize| {
        let along = |query: usize, key: usize| (query + window - 1 - key) as i64;
        along(query / window, key / window) * (2 * window as i64 - 1) + along(query % window, key % window)
    };
    (0..n * n).map(|at| number(at / n, at % n)).collect()
}

/// Returns -100 where a query must not see a key, else 0: `[windows, 1, patches, patches]` of one image.
///
/// A shift moves rows and columns from the beginning of an image to its end. Patches of different parts do not see each other.
pub fn window_mask(grid: [usize; 2], window: usize, shift: [usize; 2]) -> Vec<f32> {
    let n = window * window;
    let columns = grid[1] / window;
    // The part of an axis: before the last window, in it, or moved.
    let part = |axis: usize, at: usize| match grid[axis] {
        extent if shift[axis] > 0 && at >= extent - shift[axis] => 2,
        extent if shift[axis] > 0 && at >= extent - window => 1,
        _ => 0,
    };
    let part_of = |of: usize, patch: usize| {
        let (row, column) = (of / columns * window + patch / window, of % columns * window + patch % window);
        3 * part(0, row) + part(1, column)
    };
    let n_windows = grid[0] / window * columns;
    let score = |at: usize| {
        let (of, query, key) = (at / (n * n), at / n % n, at % n);
        if part_of(of, query) == part_of(of, key) { 0.0 } else { -100.0 }
    };
    (0..n_windows * n * n).map(score).collect()
}

/// Returns the bucket of the distance `key - query` of two tokens, as T5 counts them.
///
/// For `half = buckets / 2`, later keys begin at bucket `half`. Distances below `half / 2` have a bucket each, farther ones share
/// buckets by their logarithm, and distances from `longest` on have the last one.
pub fn relative_bucket(distance: i64, buckets: usize, longest: usize) -> i64 {
    let half = buckets / 2;
    let of_distance = bucket_of(distance.unsigned_abs() as usize, half, longest);
    (of_distance + if distance > 0 { half } else { 0 }) as i64
}

/// Returns the bucket of a distance back to an earlier token: one each for the first half, then wider ones.
pub fn bucket_of(distance: usize, buckets: usize, longest: usize) -> usize {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    let log = |x: f64| (x / exact as f64).ln();
    let beyond = log(distance as f64) / log(longest as f64) * (buckets - exact) as f64;
    (exact + beyond as usize).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_positions_are_numbered_row_by_row() {
        assert_eq!(window_distances(1), [0]);
        assert_eq!(window_distances(2), [4, 3, 1, 0, 5, 4, 2, 1, 7, 6, 4, 3, 8, 7, 5, 4]);
    }

    #[test]
    fn only_patches_that_a_shift_brings_together_are_hidden() {
        assert!(window_mask([4, 4], 2, [0, 0]).iter().all(|&score| score == 0.0));
        let mask = window_mask([4, 4], 2, [1, 1]);
        // The first window has one part; the last has four, so that a patch sees only itself.
        assert!(mask[..16].iter().all(|&score| score == 0.0));
        let last: Vec<bool> = mask[48..].iter().map(|&score| score == 0.0).collect();
        assert_eq!(last, (0..16).map(|at| at / 4 == at % 4).collect::<Vec<bool>>());
    }

    #[test]
    fn buckets_are_those_of_transformers() {
        // T5Attention._relative_position_bucket(d, bidirectional=True, num_buckets=8, max_distance=10).
        let found: Vec<i64> = (-11..=11).map(|distance| relative_bucket(distance, 8, 10)).collect();
        assert_eq!(found, [3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 1, 0, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]);
    }
}
