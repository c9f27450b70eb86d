//! Batches that run concurrently: burn leaves cores idle between its operations.

use briquette_core::Result;
use burn::tensor::Device;
use rayon::prelude::*;

/// The maximum number of concurrent batches on the CPU; each adds to the memory.
const N_LANES: usize = 4;

/// Returns the number of concurrent batches on a device, independent of the number of threads: one batch keeps
/// a GPU busy.
pub(crate) fn n_lanes(device: &Device) -> usize {
    if briquette_models::device_name(device) == "cpu" { N_LANES } else { 1 }
}

/// Runs batches concurrently, and returns the results in order.
///
/// # Errors
/// The first error of a batch.
pub(crate) fn run<T: Send, R: Send>(batches: Vec<T>, each: impl Fn(T) -> Result<R> + Send + Sync) -> Result<Vec<R>> {
    batches.into_par_iter().map(each).collect()
}
