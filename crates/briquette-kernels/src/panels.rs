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

/// Floats of inputs that stay in the second cache, one MB, while all panels of weights pass by.
const INPUTS_AT_ONCE: usize = 1 << 18;
/// Kernels take so many rows at a time.
const ROWS: usize = 12;

/// As [`for_panels`] over all outputs `y` of the inputs `x`, some rows after the others, each with its inputs.
pub(crate) fn for_rows_and_panels(
    x: &[f32],
    y: &mut [f32],
    [n_rows, n_in, n_out]: [usize; 3],
    pays: usize,
    each: &(impl Fn(&[f32], usize, Block) + Sync),
) {
    let most = (INPUTS_AT_ONCE / n_in.max(1)).max(ROWS) / ROWS * ROWS;
    for first in (0..n_rows).step_by(most) {
        let n = most.min(n_rows - first);
        let (x, y) = (&x[first * n_in..][..n * n_in], &mut y[first * n_out..][..n * n_out]);
        let n_threads = threads_for(n * n_in * n_out, pays);
        for_panels(Block::new(y, n, n_out), 0, n_threads, &|index, _, out| each(x, index, out));
    }
}

/// The threads that so many multiplications keep busy, where fewer than `pays` are best done by one.
pub(crate) fn threads_for(n_multiplications: usize, pays: usize) -> usize {
    if n_multiplications >= pays { rayon::current_num_threads() } else { 1 }
}
