//! Rows of floats in the layout for products with panels of codes.

use crate::activations::ActivationElement;
use crate::panels::for_panels;
use crate::simd::OutputBlock;
use std::cell::RefCell;

/// Rows in a tile: its 24 vectors of sums, the weights and an input fill 32 registers.
pub(crate) const TILE_ROWS: usize = 12;
/// Floats that are multiplied by one panel before the next panel, few enough to stay in the L2 cache.
const BLOCK_FLOATS: usize = 3 << 17;

thread_local! {
    static ROWS: RefCell<FloatRows> = RefCell::new(FloatRows::default());
}

/// Rows in tiles of up to [`TILE_ROWS`], input by input: `[tile][n_in][row of the tile]`.
///
/// The values of one input share a cache line. In row-major order, they would often compete for the same set of
/// the L1 cache.
#[derive(Default)]
pub(crate) struct FloatRows {
    n_rows: usize,
    n_in: usize,
    values: Vec<f32>,
}

/// Rows `first..first + n_rows`; the values of input `i` start at `x[i * n_rows]`.
pub(crate) struct FloatTile<'a> {
    pub(crate) first: usize,
    pub(crate) n_rows: usize,
    pub(crate) x: &'a [f32],
}

impl FloatRows {
    pub(crate) const fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) const fn n_in(&self) -> usize {
        self.n_in
    }

    /// Returns the first row and the height of each tile. Heights are as equal as possible: 13 rows are 7 and
    /// 6.
    fn heights(n_rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let n_tiles = n_rows.div_ceil(TILE_ROWS);
        (0..n_tiles).scan(0, move |first, i| {
            let (start, n) = (*first, (n_rows - *first).div_ceil(n_tiles - i));
            *first += n;
            Some((start, n))
        })
    }

    pub(crate) fn tiles(&self) -> impl Iterator<Item = FloatTile<'_>> {
        let n_in = self.n_in;
        Self::heights(self.n_rows).map(move |(first, n_rows)| FloatTile {
            first,
            n_rows,
            x: &self.values[first * n_in..(first + n_rows) * n_in],
        })
    }

    /// Replaces the rows by `x`, reusing the memory.
    fn fill(&mut self, x: &[f32], n_rows: usize, n_in: usize) {
        /// Inputs that are moved together: one cache line of each row.
        const STEP: usize = 16;
        (self.n_rows, self.n_in) = (n_rows, n_in);
        self.values.resize(n_rows * n_in, 0.0);
        for (first, n) in Self::heights(n_rows) {
            let tile = &mut self.values[first * n_in..(first + n) * n_in];
            for (at, tile) in tile.chunks_mut(STEP * n).enumerate() {
                for row in 0..n {
                    let x = &x[(first + row) * n_in + STEP * at..][..tile.len() / n];
                    tile.chunks_exact_mut(n).zip(x).for_each(|(values, x)| values[row] = *x);
                }
            }
        }
    }
}

/// Computes a product in blocks of as many rows of `x` as fit the caches.
///
/// Calls `each` with the rows, the index of a panel, and their block of outputs. Panels are split over
/// `n_threads`.
pub(crate) fn for_float_rows<T: ActivationElement>(
    mut x: &[T],
    n_in: usize,
    mut out: OutputBlock,
    n_threads: usize,
    each: &(impl Fn(&FloatRows, usize, OutputBlock) + Sync),
) {
    let block_rows = (BLOCK_FLOATS / n_in.max(1)).clamp(4 * TILE_ROWS, 44 * TILE_ROWS) / TILE_ROWS * TILE_ROWS;
    let (mut rows, mut scratch) = (ROWS.take(), Vec::new());
    while out.n_rows() > 0 {
        let n = block_rows.min(out.n_rows());
        let (now, later) = x.split_at(n * n_in);
        let (block, rest) = out.split_rows(n);
        rows.fill(T::widened(now, &mut scratch), n, n_in);
        for_panels(block, 0, n_threads, &|run| run.for_each(|(index, _, out)| each(&rows, index, out)));
        (x, out) = (later, rest);
    }
    ROWS.set(rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_found_in_its_tile() {
        let mut rows = FloatRows::default();
        for (n_rows, n_in) in [(0, 5), (1, 33), (12, 16), (13, 40), (61, 1), (5, 0)] {
            let x: Vec<f32> = (0..n_rows * n_in).map(|i| i as f32).collect();
            rows.fill(&x, n_rows, n_in);
            let mut next = 0;
            for tile in rows.tiles() {
                assert!(tile.first == next && (1..=TILE_ROWS).contains(&tile.n_rows));
                assert_eq!(tile.x.len(), tile.n_rows * n_in);
                for (i, &value) in tile.x.iter().enumerate() {
                    assert_eq!(value, x[(tile.first + i % tile.n_rows) * n_in + i / tile.n_rows]);
                }
                next += tile.n_rows;
            }
            assert_eq!(next, n_rows);
        }
    }
}
