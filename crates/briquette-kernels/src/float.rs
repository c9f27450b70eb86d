//! What lies between the matrix products of a transformer, in f32: activations, norms and attention.

mod attention;
mod gelu;
mod norm;

pub use attention::{AttentionShape, attention};
pub use gelu::gelu;
pub use norm::add_norm;

/// Below this many elements, waking another thread costs more than it saves.
const PAYS: usize = 1 << 16;

/// Rows a thread takes at once, so that all have some but none too few to be worth waking.
fn rows_per_task(n_rows: usize, n_cols: usize) -> usize {
    let n_threads = if n_rows * n_cols >= PAYS { rayon::current_num_threads() } else { 1 };
    n_rows.div_ceil(n_threads).max(1)
}
