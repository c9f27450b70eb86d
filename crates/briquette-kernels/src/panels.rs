//! Going over the panels of weights whose outputs make up a block, by several threads.

use crate::simd::{Block, PANEL};

/// Calls `each` with a panel's index, whether the one after it will not be next, and the outputs of it; panels are those
/// from `first` on, as many as `out` has columns for, split over `n_threads`.
pub(crate) fn for_panels(mut out: Block, first: usize, n_threads: usize, each: &(impl Fn(usize, bool, Block) + Sync)) {
    let n_panels = out.n_cols().div_ceil(PANEL);
    if n_threads > 1 && n_panels > 1 {
        let half = n_panels * (n_threads / 2) / n_threads;
        let (left, right) = out.split_cols(half * PANEL);
        rayon::join(
            || for_panels(left, first, n_threads / 2, each),
            || for_panels(right, first + half, n_threads.div_ceil(2), each),
        );
        return;
    }
    for index in first..first + n_panels {
        let n = PANEL.min(out.n_cols());
        let (now, later) = out.split_cols(n);
        each(index, index + 1 == first + n_panels, now);
        out = later;
    }
}

/// The threads that so many multiplications keep busy, where fewer than `pays` are best done by one.
pub(crate) fn threads_for(n_multiplications: usize, pays: usize) -> usize {
    if n_multiplications >= pays { rayon::current_num_threads() } else { 1 }
}
