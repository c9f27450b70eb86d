//! Splitting a product over threads by panels of weights.

use crate::simd::{OutputBlock, PANEL};

/// Iterates over the panels of one thread.
///
/// Items are the index of a panel, whether it is the thread's last, and the block for its outputs.
pub(crate) struct PanelRun<'a> {
    next: usize,
    out: Option<OutputBlock<'a>>,
}

impl<'a> Iterator for PanelRun<'a> {
    type Item = (usize, bool, OutputBlock<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let out = self.out.take()?;
        let (index, n) = (self.next, PANEL.min(out.n_cols()));
        let (now, later) = out.split_cols(n);
        self.next += 1;
        self.out = (later.n_cols() > 0).then_some(later);
        Some((index, self.out.is_none(), now))
    }
}

/// Calls `run` with as many panels as `out` has columns for, starting at `first`, split over `n_threads`.
pub(crate) fn for_panels(out: OutputBlock, first: usize, n_threads: usize, run: &(impl Fn(PanelRun) + Sync)) {
    let n_panels = out.n_cols().div_ceil(PANEL);
    if n_threads > 1 && n_panels > 1 {
        let half = n_panels * (n_threads / 2) / n_threads;
        let (left, right) = out.split_cols(half * PANEL);
        rayon::join(
            || for_panels(left, first, n_threads / 2, run),
            || for_panels(right, first + half, n_threads.div_ceil(2), run),
        );
    } else if n_panels > 0 {
        run(PanelRun { next: first, out: Some(out) });
    }
}

/// Returns the threads for a product: one below `pays` multiplications, otherwise all.
pub(crate) fn threads_for(n_multiplications: usize, pays: usize) -> usize {
    if n_multiplications >= pays { rayon::current_num_threads() } else { 1 }
}
