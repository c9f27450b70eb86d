//! What is computed in f32: convolutions, and what lies between matrix products.

mod attention;
mod conv2d;
mod gelu;
mod max_pool2d;
mod norm;

pub use attention::{AttentionShape, attention};
pub use conv2d::FloatConv2d;
pub use gelu::gelu;
pub use max_pool2d::{max_pool2d, max_pool2d_grad};
pub use norm::add_norm;

/// Below this many elements, waking another thread costs more than it saves.
const PAYS: usize = 1 << 16;

/// Rows that a thread takes at once: an equal share for all threads where the work is worth waking them, else all rows.
fn rows_per_task(n_rows: usize, n_cols: usize) -> usize {
    let n_threads = if n_rows * n_cols >= PAYS { rayon::current_num_threads() } else { 1 };
    n_rows.div_ceil(n_threads).max(1)
}
