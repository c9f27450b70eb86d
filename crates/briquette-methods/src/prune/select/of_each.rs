//! The k smallest scores of each group of a row, and of each block of columns.

use super::smallest;
use briquette_core::{Mask, bits};

/// Drops the `n_drop` smallest of every `size` consecutive scores of a row.
///
/// The mask is written to `bits`.
///
/// Use the row's length as `size` for a whole row. Among equal scores, lower indices are dropped first.
///
/// # Panics
/// If `size` does not divide the row, or `n_drop` is more than `size`.
pub fn smallest_of_each(scores: &[f32], size: usize, n_drop: usize, order: &mut Vec<u32>, bits: &mut [u8]) {
    assert!(n_drop <= size && size > 0 && scores.len().is_multiple_of(size), "whole groups of at least {n_drop}");
    bits.fill(0);
    for (group, scores) in scores.chunks_exact(size).enumerate() {
        let (key, mut n_ties) = border(scores, n_drop, order);
        for (i, score) in scores.iter().enumerate() {
            let found = score.abs().to_bits();
            let is_tie = found == key && n_ties > 0;
            n_ties -= usize::from(is_tie);
            let bit = group * size + i;
            bits[bit / 8] |= u8::from(found >= key && !is_tie) << (bit % 8);
        }
    }
}

/// Drops the `n_drop` smallest scores of every `size` consecutive columns of `[n_rows, n_cols]`, over all rows.
///
/// If the last block has fewer columns, it drops proportionally fewer scores, rounded down. Among equal scores,
/// lower indices in the block are dropped first.
///
/// # Panics
/// If the lengths disagree, `size` is 0, or `n_drop` is more than the size of a block.
pub fn smallest_of_columns(scores: &[f32], n_rows: usize, n_cols: usize, size: usize, n_drop: usize) -> Mask {
    assert_eq!(scores.len(), n_rows * n_cols, "whole rows of scores");
    let mut keep = vec![0; n_rows * Mask::row_bytes(n_cols)];
    for first in (0..n_cols).step_by(size) {
        let n = size.min(n_cols - first);
        let block: Vec<f32> =
            scores.chunks_exact(n_cols).flat_map(|row| row[first..first + n].iter().copied()).collect();
        // `u128`, because the product may exceed `usize`.
        let n_drop = n_drop as u128 * n as u128 / size as u128;
        let of_block = smallest(&block, n_rows, n, n_drop as usize);
        for (row, bits) in keep.chunks_exact_mut(Mask::row_bytes(n_cols)).enumerate() {
            for col in (0..n).filter(|&col| bits::get(of_block.row(row), col)) {
                bits[(first + col) / 8] |= 1 << ((first + col) % 8);
            }
        }
    }
    Mask::from_bits(n_rows, n_cols, keep)
}

/// Returns the largest key that is dropped, and how many scores equal to it are dropped.
fn border(scores: &[f32], n_drop: usize, keys: &mut Vec<u32>) -> (u32, usize) {
    if n_drop == 0 {
        return (0, 0);
    }
    keys.clear();
    keys.extend(scores.iter().map(|score| score.abs().to_bits()));
    let (smaller, &mut key, _) = keys.select_nth_unstable(n_drop - 1);
    let n_smaller = smaller.iter().filter(|&&other| other < key).count();
    (key, n_drop - n_smaller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_group_drops_its_smallest(
            scores in prop::collection::vec(prop_oneof![-1.0_f32..1.0, Just(0.25), Just(-0.25), Just(0.0)], 60),
            size in prop::sample::select(vec![1_usize, 3, 4, 12, 20, 60]),
            share in 0.0_f64..=1.0,
        ) {
            let n_drop = (share * size as f64) as usize;
            let mut found = vec![0; 8];
            smallest_of_each(&scores, size, n_drop, &mut Vec::new(), &mut found);
            for start in (0..60).step_by(size) {
                let mut order: Vec<usize> = (start..start + size).collect();
                order.sort_by(|&a, &b| scores[a].abs().total_cmp(&scores[b].abs()).then(a.cmp(&b)));
                for (place, index) in order.into_iter().enumerate() {
                    prop_assert_eq!(bits::get(&found, index), place >= n_drop);
                }
            }
        }
    }

    #[test]
    fn each_block_of_columns_drops_its_smallest_over_all_rows() {
        let scores = [1.0, 9.0, 5.0, 2.0, 8.0, 3.0, 4.0, 0.5, 6.0, 7.0];
        let mask = smallest_of_columns(&scores, 2, 5, 2, 2);
        let keep = |row: usize| (0..5).map(|col| mask.keeps(row, col)).collect::<Vec<_>>();
        assert_eq!([keep(0), keep(1)], [[false, true, true, false, true], [false, true, false, true, false]]);
    }
}
