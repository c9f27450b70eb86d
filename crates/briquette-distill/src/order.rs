//! The order of the data.

use briquette_core::{Error, Result};
use burn::data::dataset::transform::ShuffledDataset;
use burn::data::dataset::{Dataset, InMemDataset};

/// Returns a permutation of `0..n` that depends only on the seed and the epoch.
///
/// A resumed run therefore has the same order.
///
/// # Errors
/// Bug: the shuffled order cannot be read.
pub fn order(n: usize, seed: u64, epoch: usize) -> Result<Vec<usize>> {
    // A plain `seed + epoch` would give epoch 1 of seed 0 the order of epoch 0 of seed 1.
    let of_epoch = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(epoch as u64);
    let rows = ShuffledDataset::new(InMemDataset::new((0..n).collect::<Vec<usize>>()), of_epoch);
    let each = (0..n).map(|at| rows.get(at).map_err(|error| Error::bug(format!("the order of the data: {error}"))));
    each.collect()
}

/// The number of batches whose items are sorted by cost together.
const WINDOW: usize = 16;

/// Reorders rows so that the items of a batch have similar cost: short texts are not padded to the length of a
/// long one.
///
/// Within windows of 16 batches, rows are sorted by `cost` and cut into batches; then all full batches are
/// shuffled.
///
/// # Errors
/// See [`order`].
pub(crate) fn gathered(
    mut rows: Vec<usize>,
    batch_size: usize,
    seed: u64,
    epoch: usize,
    cost: impl Fn(usize) -> usize,
) -> Result<Vec<usize>> {
    for window in rows.chunks_mut(WINDOW * batch_size) {
        window.sort_by_key(|&row| cost(row));
    }
    let n_full = rows.len() / batch_size;
    let (full, rest) = rows.split_at(n_full * batch_size);
    // With the seed of the rows, batches would be shuffled by the same random numbers.
    let batches = order(n_full, !seed, epoch)?;
    let full = batches.into_iter().flat_map(|batch| &full[batch * batch_size..(batch + 1) * batch_size]);
    Ok(full.chain(rest).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_a_batch_have_similar_cost() {
        let cost = |row: usize| row * 7 % 50;
        let rows = gathered(order(1003, 1, 0).unwrap(), 10, 1, 0, cost).unwrap();
        let spread = |rows: &[usize]| {
            let costs = rows.iter().map(|&row| cost(row));
            rows.len() * (costs.clone().max().unwrap() - costs.min().unwrap())
        };
        let of = |rows: &[usize]| rows.chunks(10).map(spread).sum::<usize>();
        assert!(of(&rows) < of(&order(1003, 1, 0).unwrap()) / 5, "{}", of(&rows));
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1003).collect::<Vec<_>>());
        assert!(!rows.chunks(10).map(|rows| cost(rows[0])).is_sorted());
        assert_eq!(gathered(vec![2, 0, 1], 10, 1, 0, |_| 0).unwrap(), [2, 0, 1]);
    }

    #[test]
    fn an_order_holds_every_row_once_and_depends_on_seed_and_epoch() {
        for n in [0, 1, 2, 1000] {
            let mut rows = order(n, 3, 1).unwrap();
            rows.sort_unstable();
            assert_eq!(rows, (0..n).collect::<Vec<_>>());
        }
        let of = |seed, epoch| order(1000, seed, epoch).unwrap();
        assert_eq!(of(3, 1), of(3, 1));
        assert!(of(3, 1) != of(3, 2) && of(3, 1) != of(4, 1));
    }
}
