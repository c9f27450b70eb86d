//! The amount of work that justifies another thread.

/// Below this many elements, waking another thread costs more than it saves.
pub const PAYS: usize = 1 << 16;

/// Returns the rows per task: an equal share for all threads, or all rows if the work is too small.
pub(crate) fn rows_per_task(n_rows: usize, n_cols: usize) -> usize {
    let n_threads = if n_rows * n_cols >= PAYS { rayon::current_num_threads() } else { 1 };
    n_rows.div_ceil(n_threads).max(1)
}
