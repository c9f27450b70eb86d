//! Sums over rows that do not depend on the number of threads.

use super::threads::PAYS;
use rayon::prelude::*;

/// Rows that are summed together, in f32.
const ROWS: usize = 64;

/// Calls `f` with parts of `x` and `dy` (whole rows of `n_cols`) and with `n_sums` zeros, to which it adds.
///
/// Returns the sums over all parts, added in order.
pub(super) fn row_sums(
    n_cols: usize,
    n_sums: usize,
    x: &[f32],
    dy: &mut [f32],
    f: impl Fn(&[f32], &mut [f32], &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut sums = vec![0.0; n_sums];
    if x.is_empty() {
        return sums;
    }
    let (n, pays) = (ROWS * n_cols, x.len() >= PAYS && rayon::current_num_threads() > 1);
    let mut parts = vec![0.0; n_sums * x.len().div_ceil(n)];
    if pays {
        let chunks = x.par_chunks(n).zip(dy.par_chunks_mut(n)).zip(parts.par_chunks_mut(n_sums));
        chunks.for_each(|((x, dy), sums)| f(x, dy, sums));
    } else {
        let chunks = x.chunks(n).zip(dy.chunks_mut(n)).zip(parts.chunks_mut(n_sums));
        chunks.for_each(|((x, dy), sums)| f(x, dy, sums));
    }
    for part in parts.chunks(n_sums) {
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sums
}
