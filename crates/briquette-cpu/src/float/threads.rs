//! How much work is worth another thread.

/// Below this many elements, waking another thread costs more than it saves.
pub const PAYS: usize = 1 << 16;

/// Rows that a thread takes at once: an equal share for all threads where the work is worth waking them, else all rows.
pub(crate) fn rows_per_task(n_rows: usize, n_cols: usize) -> usize {
    let n_threads = if n_rows * n_cols >= PAYS { rayon::current_num_threads() } else { 1 };
    n_rows.div_ceil(n_threads).max(1)
}
