//! Batches that run at the same time: burn leaves cores idle between its operations.

use briquette_core::Result;
use burn::tensor::Device;
use rayon::prelude::*;

/// Batches at the same time on the CPU, at most; the memory of each adds up.
const N_LANES: usize = 4;

/// Batches that run at the same time on this device, however many threads there are: a GPU is busy with one.
pub(crate) fn n_lanes(device: &Device) -> usize {
    if briquette_models::device_name(device) == "cpu" { N_LANES } else { 1 }
}

/// Runs some batches at the same time, in the order in which they came.
///
/// # Errors
/// The first of them.
pub(crate) fn run<T: Send, R: Send>(batches: Vec<T>, each: impl Fn(T) -> Result<R> + Send + Sync) -> Result<Vec<R>> {
    batches.into_par_iter().map(each).collect()
}
